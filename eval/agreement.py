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

A drafter that has hardly learned says a few tokens everywhere, and where another is about as good
rounding changes all its verdicts at once, not one by one. So nothing is concluded about one that
says a single token at more than a fifth of the positions, and twice as often as the verifier says
any; unless its trainer found it right at more: a wrong file, too, may say one token everywhere.
"""

import math
from collections.abc import Sequence

import numpy as np

from eval.draft import DraftModel
from eval.errors import SpecError
from eval.judging import Counts, Ids, JudgedRow, judge_rows
from eval.replay import DEFAULT_BUDGET_TOKENS
from eval.sequences import Row
from eval.spec import Frozen
from eval.verifier import VerifierParts

_FLOOR = 0.004
_SHARE_CHANGED = {"float32": 0.002, "bfloat16": 0.01}
_NUM_DEVIATIONS = 4.0
_MOST_OF_ONE = 0.2


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
    share_of_one: float
    """The commonest token's share of what the drafter says in the first step."""
    share_of_one_said: float
    """The same of what the verifier says."""

    @property
    def is_judged(self) -> bool:
        """Whether anything can be concluded: it had learned, or does not say one token always."""
        most = max(_MOST_OF_ONE, 2 * self.share_of_one_said)
        return self.steps[0].trained > most or self.share_of_one <= most

    @property
    def agrees(self) -> bool:
        """Whether every step does, or nothing can be concluded."""
        return not self.is_judged or all(step.agrees for step in self.steps)

    @property
    def worst(self) -> StepAgreement:
        """The step that is furthest off in units of its tolerance."""
        return max(self.steps, key=lambda s: abs(s.replayed - s.trained) / s.tolerance)

    def describe(self) -> str:
        """The worst step with all that is needed to judge it."""
        step = self.worst
        told = (
            f"step {step.step}: trained {step.trained:.4f}, replayed from the file "
            f"{step.replayed:.4f}, tolerance {step.tolerance:.4f} ({step.total:,} positions)"
        )
        return told if self.is_judged else f"{told}; not judged: {self.describe_unlearned()}"

    def describe_unlearned(self) -> str:
        """Why nothing can be concluded, where nothing can."""
        return f"the drafter says one token at {self.share_of_one:.0%} of the positions"

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
    return Agreement(
        steps=tuple(steps),
        share_replayed=share_replayed,
        share_of_one=_share_of_one([one.drafted for one in judged]),
        share_of_one_said=_share_of_one([one.said for one in judged]),
    )


def _share_of_one(ids: Sequence[Ids]) -> float:
    """The commonest id's share; 0 of none."""
    ids_N = np.concatenate(ids)
    return float(np.bincount(ids_N).max()) / len(ids_N) if len(ids_N) else 0.0


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
