"""Train agreement: does a saved drafter compute what its trainer measured?

The trainer's accuracies are counted again from the file, over the same rows, by the trainer's own
definitions: step s of entry i is right when its draft id is the verifier's best one *within the
draft vocabulary* after token i + 1 + s; all earlier steps must be right, too; tokens i + 1 and
i + 1 + s must be answer tokens, and every answer token i + 1 + s counts in the total.
Source: speculators 0.9.0, models/eagle3/metrics.py and models/metrics.py. A float32 file gives
the trainer's very counts.

This sees what no look at files can: a norm switch, the order of aux layers, rope, a window, an
activation, an epsilon, embeddings that were not saved, another verifier's states.

The tolerance is for what legitimately differs. Checkpoints are bfloat16, their masters float32: of
34,704 verdicts on four real checkpoints (2,892 positions, three steps) the counts differed by 4. A
trainer that computes in bfloat16 has another argmax at 1.1 to 1.7 of 100 positions, which moved
the counts of 2,892 by 0, 1 and 3. Such changes go either way, so the difference of two accuracies
over n positions has a standard deviation of sqrt(f / n), f being the share of verdicts that change:
0.002, or 0.01 for bfloat16. Four of them, at least `_FLOOR`, plus one position.

Where only some rows were replayed, four standard errors of that sample come on top.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from eval.draft import DraftModel
from eval.errors import SpecError
from eval.replay import DEFAULT_BUDGET_TOKENS
from eval.sequences import Batch, Row, build_batches
from eval.spec import Frozen
from eval.unroll import TrueToken, count_on, count_right
from eval.verifier import VerifierParts
from eval.walk import Depths

Counts = npt.NDArray[np.int64]

_FLOOR = 0.004
_SHARE_CHANGED = {"float32": 0.002, "bfloat16": 0.01}
_NUM_DEVIATIONS = 4.0


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


class StepAgreement(Frozen):
    """One step of the unroll."""

    step: int
    trained: float
    """The trainer's `full_acc` of the step."""
    replayed: float
    """The same, counted from the file."""
    total: int
    """Positions replayed."""
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than the tolerance."""
        return abs(self.replayed - self.trained) <= self.tolerance


class Agreement(Frozen):
    """Whether a file computes what was trained."""

    steps: tuple[StepAgreement, ...]
    share_replayed: float
    """Of the trainer's positions."""

    @property
    def agrees(self) -> bool:
        """Whether every step does."""
        return all(step.agrees for step in self.steps)

    @property
    def worst(self) -> StepAgreement:
        """The step that is furthest off in units of its tolerance."""
        return max(self.steps, key=lambda s: abs(s.replayed - s.trained) / s.tolerance)

    def describe(self) -> str:
        """The worst step with all that is needed to judge it."""
        step = self.worst
        return (
            f"step {step.step}: trained {step.trained:.4f}, replayed from the file "
            f"{step.replayed:.4f}, tolerance {step.tolerance:.4f} ({step.total:,} positions)"
        )

    def suspects(self) -> str:
        """What such a gap comes from, the likeliest first."""
        everywhere = (
            "norm_before_residual, norm_before_fc or fc_norm, eagle_aux_hidden_state_layer_ids, "
            "rope_parameters, sliding_window and layer_types, hidden_act, rms_norm_eps, embeddings "
            "that were trained but not saved, hidden states of another verifier"
        )
        if self.steps[0].agrees and len(self.steps) > 1:
            return f"the first step agrees: look at norm_output first, then at {everywhere}"
        return f"compare with the training: {everywhere}"


def check_agreement(
    model: DraftModel,
    parts: VerifierParts,
    rows: Sequence[Row],
    trained: Sequence[float],
    *,
    dtype: str = "float32",
    share_replayed: float = 1.0,
    budget_tokens: int = DEFAULT_BUDGET_TOKENS,
) -> Agreement:
    """Compares the accuracies of a file with those of its training.

    Args:
        model: The drafter as its file says.
        parts: The verifier's head and norm.
        rows: The trainer's validation rows, each cut where the trainer cut it.
        trained: `full_acc` of each step.
        dtype: That the trainer computed in.
        share_replayed: Of the trainer's validation rows; below 1 the rows are a sample.
        budget_tokens: Entries computed at once.

    Raises:
        SpecError: There is nothing to compare.
    """
    judged = [
        one
        for batch in judge_rows(model, parts, rows, len(trained), budget_tokens=budget_tokens)
        for one in batch
    ]
    return compare(judged, trained, dtype=dtype, share_replayed=share_replayed)


def compare(
    judged: Sequence[JudgedRow],
    trained: Sequence[float],
    *,
    dtype: str = "float32",
    share_replayed: float = 1.0,
) -> Agreement:
    """As `check_agreement`, from rows that were judged already."""
    if not judged or not trained or not sum(one.total.sum() for one in judged):
        raise SpecError(
            f"expected answer tokens and accuracies to compare, found {len(judged)} rows and "
            f"{len(trained)} accuracies",
            "the validation rows hold no answers, or the trainer reported no full_acc_<step>",
        )
    right_NS = np.stack([one.right for one in judged])
    total_NS = np.stack([one.total for one in judged])
    changed = _SHARE_CHANGED.get(dtype, max(_SHARE_CHANGED.values()))
    steps = []
    for step, accuracy in enumerate(trained):
        right, total = right_NS[:, step], total_NS[:, step]
        num = max(1, int(total.sum()))
        noise = max(_FLOOR, _NUM_DEVIATIONS * math.sqrt(changed / num)) + 1 / num
        sampling = _NUM_DEVIATIONS * _standard_error(right, total, share_replayed)
        steps.append(
            StepAgreement(
                step=step,
                trained=accuracy,
                replayed=float(right.sum()) / num,
                total=int(total.sum()),
                tolerance=noise + sampling,
            )
        )
    return Agreement(steps=tuple(steps), share_replayed=share_replayed)


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

    def __call__(self, step: int, entries_BQ: Tensor, draft_ids_BQ: Tensor) -> Tensor:
        is_taught = self._said_BU.gather(1, entries_BQ + step + 1) == draft_ids_BQ
        is_true = self._is_true(step, entries_BQ, draft_ids_BQ)
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
        return JudgedRow(
            row=row,
            served=served_T[: row.num_entries].numpy(),
            right=np.array(right),
            total=np.array([int(asked_U[s:].sum()) for s in range(self._num_steps)]),
            num_checked=int(is_known.sum()),
            num_greedy=int((is_known & (self._ids_R[said_T] == next_T)).sum()),
        )


def _standard_error(right: Counts, total: Counts, share: float) -> float:
    """Of a ratio of sums over a sample of rows that is `share` of all of them.

    Source: Cochran, Sampling Techniques, 1977, equation 6.9, with the finite population factor.
    """
    if share >= 1 or len(right) < 2:  # noqa: PLR2004 - a variance takes two
        return 0.0
    ratio = right.sum() / max(1, total.sum())
    residuals = right - ratio * total
    variance = float((residuals**2).sum()) / (len(right) - 1) / len(right)
    return math.sqrt((1 - share) * variance) / max(float(total.mean()), 1e-9)
