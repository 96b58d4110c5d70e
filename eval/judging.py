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
        served = judge.served_BT
        if has_window:
            served = count_right(model, batch, num_steps)
        yield judge.rows(served)


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

    @property
    def served_BT(self) -> Tensor:  # noqa: N802 - shape suffix
        """Steps that were the true tokens in a row."""
        return self._served_BT.cpu()

    def rows(self, served_BT: Tensor) -> list[JudgedRow]:
        """The verdicts on every row of the batch."""
        verdicts = _Verdicts(
            taught_BT=self._taught_BT.cpu(),
            served_BT=served_BT,
            drafted_BT=self._drafted_BT.cpu(),
            said_BU=self._said_BU.cpu(),
            ids_R=self._ids_R.cpu(),
            num_steps=self._num_steps,
        )
        return [verdicts.of_row(self._batch, index) for index in range(len(self._batch.rows))]


class _Verdicts(NamedTuple):
    """What was found of a batch, on the CPU."""

    taught_BT: Tensor
    """Steps in a row that said what the verifier says."""
    served_BT: Tensor
    drafted_BT: Tensor
    said_BU: Tensor
    """Draft id that the verifier says after token i."""
    ids_R: Tensor
    num_steps: int

    def of_row(self, batch: Batch, index: int) -> JudgedRow:
        """One row's part, by the words of `JudgedRow`."""
        row, taught_T = batch.rows[index], self.taught_BT[index]
        length, num_steps = len(taught_T), self.num_steps
        is_start_T = batch.is_start_BT[index]
        asked_U = pad(is_start_T, (0, num_steps), value=False)
        right = [
            int((is_start_T & asked_U[s : s + length] & (taught_T > s)).sum())
            for s in range(num_steps)
        ]
        said_T = self.said_BU[index, 1 : length + 1]
        next_T = batch.next_ids_BU[index, 1 : length + 1]
        is_known = is_start_T & torch.isin(next_T, self.ids_R)
        return JudgedRow(
            row=row,
            served=self.served_BT[index, : row.num_entries].numpy(),
            right=np.array(right),
            total=np.array([int(asked_U[s:].sum()) for s in range(num_steps)]),
            num_checked=int(is_known.sum()),
            num_greedy=int((is_known & (self.ids_R[said_T] == next_T)).sum()),
            drafted=self.drafted_BT[index, is_start_T].numpy(),
            said=said_T[is_start_T].numpy(),
        )
