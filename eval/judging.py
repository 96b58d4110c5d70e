"""Rows judged by what a trainer asks of a drafter and by what a server asks, in one pass.

The trainer's question is `eval.agreement`'s, the server's `eval.walk`'s.
Shapes as in `eval.draft`; U entries with room for the later steps.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from eval.draft import DraftModel
from eval.replay import DEFAULT_BUDGET_TOKENS
from eval.sequences import Batch, Row, build_batches
from eval.unroll import TrueToken, count_on, count_right
from eval.verifier import VerifierParts
from eval.walk import Depths

Counts = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]
"""Draft ids: indices into the draft vocabulary."""


class JudgedRow(NamedTuple):
    """One row, judged by what a trainer asks and by what a server asks, in one pass."""

    row: Row
    served: Depths
    """By entry: steps that were the true tokens in a row; -1 where nothing was asked."""
    right: Counts
    """By step: entries that were right so far as the trainer counts, [S]."""
    total: Counts
    """By step: entries that the trainer asks, [S]."""
    num_checked: int
    """Answer tokens of the draft vocabulary."""
    num_greedy: int
    """Those of them that the verifier's last hidden state gives as its best within it."""
    drafted: Ids
    """What the drafter says in the first step of every draft, [N]."""
    said: Ids
    """What the verifier says there."""


def judge_rows(
    model: DraftModel,
    parts: VerifierParts,
    rows: Sequence[Row],
    num_steps: int,
    *,
    budget_tokens: int = DEFAULT_BUDGET_TOKENS,
) -> Iterator[list[JudgedRow]]:
    """Judges rows batch by batch, so that a caller can do other work in between.

    A drafter with a sliding window is unrolled twice: in training its window stands still.
    """
    has_window = any(window is not None for window in model.facts.windows)
    parts = parts.among(model.ids_R)
    for batch in build_batches(rows, budget_tokens, num_steps):
        judge = _BothJudges(model, parts, batch, num_steps)
        count_right(model, batch, num_steps, judge, is_window_fixed=True)
        yield judge.rows(count_right(model, batch, num_steps) if has_window else None)


class _BothJudges:
    """Follows an entry while either judge calls it right, and keeps both verdicts.

    The verifier's head is here that of the draft vocabulary alone.
    """

    def __init__(
        self, model: DraftModel, parts: VerifierParts, batch: Batch, num_steps: int
    ) -> None:
        self._batch, self._num_steps, self._ids_R = batch, num_steps, model.ids_R
        said_BT = parts.predict(batch.states_BTAD[:, :, -1])
        self._said_BU = pad(said_BT.to(model.device), (0, num_steps), value=-1)
        self._is_true = TrueToken(model, batch)
        self._taught_BT = torch.where(batch.is_start_BT, 0, -1).to(model.device)
        self._served_BT = self._taught_BT.clone()
        self._drafted_BT = torch.full_like(self._taught_BT, -1)

    def __call__(self, step: int, entries_BQ: Tensor, draft_ids_BQ: Tensor) -> Tensor:
        is_taught = self._said_BU.gather(1, entries_BQ + step + 1) == draft_ids_BQ
        is_true = self._is_true(step, entries_BQ, draft_ids_BQ)
        if not step:
            self._drafted_BT.scatter_(1, entries_BQ, draft_ids_BQ)
        count_on(self._taught_BT, entries_BQ, is_taught, step)
        count_on(self._served_BT, entries_BQ, is_true, step)
        return is_taught | is_true

    def rows(self, served_BT: Tensor | None = None) -> list[JudgedRow]:
        """The verdicts on every row of the batch.

        Args:
            served_BT: Steps that were the true tokens in a row; None: as counted here.
        """
        batch, ids_R = self._batch, self._ids_R.cpu()
        served_BT = self._served_BT.cpu() if served_BT is None else served_BT
        taught_BT, drafted_BT = self._taught_BT.cpu(), self._drafted_BT.cpu()
        is_start_BT, num = batch.is_start_BT, taught_BT.shape[1]
        asked_BU = pad(is_start_BT, (0, self._num_steps), value=False)
        right_SB = [
            (is_start_BT & asked_BU[:, s : s + num] & (taught_BT > s)).sum(1)
            for s in range(self._num_steps)
        ]
        total_SB = [asked_BU[:, s:].sum(1) for s in range(self._num_steps)]
        right_BS, total_BS = torch.stack(right_SB, 1).numpy(), torch.stack(total_SB, 1).numpy()
        said_BT = self._said_BU[:, 1 : num + 1].cpu()
        next_BT = batch.next_ids_BU[:, 1 : num + 1]
        is_known_BT = is_start_BT & torch.isin(next_BT, ids_R)
        is_greedy_BT = is_known_BT & (ids_R[said_BT] == next_BT)
        return [
            JudgedRow(
                row=row,
                served=served_BT[index, : row.num_entries].numpy(),
                right=right_BS[index],
                total=total_BS[index],
                num_checked=int(is_known_BT[index].sum()),
                num_greedy=int(is_greedy_BT[index].sum()),
                drafted=drafted_BT[index, is_start_BT[index]].numpy(),
                said=said_BT[index, is_start_BT[index]].numpy(),
            )
            for index, row in enumerate(batch.rows)
        ]
