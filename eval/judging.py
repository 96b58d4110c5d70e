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
    drafted: Counts
    """What the drafter says in the first step, draft ids, [N]."""
    said: Counts
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
        served = judge.served_BT
        if has_window:
            served = count_right(model, batch, num_steps)
        yield [judge.row(index, served[index]) for index in range(len(batch.rows))]


def spread(rows: Sequence[Row], most_tokens: int) -> list[Row]:
    """Every n-th row, so that about `most_tokens` answer tokens are left."""
    total = sum(row.num_answer_tokens for row in rows)
    return list(rows[:: max(1, -(-total // most_tokens))])


class _BothJudges:
    """Follows an entry while either judge calls it right, and keeps both verdicts.

    The verifier's head is here that of the draft vocabulary alone.
    """

    def __init__(
        self, model: DraftModel, parts: VerifierParts, batch: Batch, num_steps: int
    ) -> None:
        self._batch, self._num_steps = batch, num_steps
        self._ids_R = model.ids_R
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

    @property
    def served_BT(self) -> Tensor:  # noqa: N802 - shape suffix
        """Steps that were the true tokens in a row."""
        return self._served_BT.cpu()

    def row(self, index: int, served_T: Tensor) -> JudgedRow:
        """The verdicts on one row."""
        row = self._batch.rows[index]
        asked_U = pad(self._batch.is_start_BT[index], (0, self._num_steps), value=False)
        taught_T = self._taught_BT[index].cpu()
        length = len(taught_T)
        right = [
            int((asked_U[:length] & asked_U[s : s + length] & (taught_T > s)).sum())
            for s in range(self._num_steps)
        ]
        said_T = self._said_BU[index, 1:length]
        next_T = self._batch.next_ids_BU[index, 1:length].to(said_T.device)
        asked_T = asked_U[: length - 1].to(said_T.device) & (next_T >= 0)
        is_known = asked_T & torch.isin(next_T, self._ids_R)
        is_first = asked_U[: length - 1].numpy()
        return JudgedRow(
            row=row,
            served=served_T[: row.num_entries].numpy(),
            right=np.array(right),
            total=np.array([int(asked_U[s:].sum()) for s in range(self._num_steps)]),
            num_checked=int(is_known.sum()),
            num_greedy=int((is_known & (self._ids_R[said_T] == next_T)).sum()),
            drafted=self._drafted_BT[index, : length - 1].cpu().numpy()[is_first],
            said=said_T.cpu().numpy()[is_first],
        )
