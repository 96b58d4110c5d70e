"""Counterfactual replay: does some other reading of its config fit a drafter better?

A drafter without a trainer's record says in no file which arithmetic it was trained in. But it was
trained to agree with the verifier, so in its own arithmetic it agrees best. Each change of
`eval.variants` is replayed over the same answers and compared prompt by prompt, over all positions.

Two figures are compared. The acceptance length is what counts, but too coarse to see every
corruption: with its norm_before_residual turned, a trained drafter lost 0.7 % of it, no more than
chance gives or takes over 24 prompts. The loss of `eval.scoring` sees what costs little, too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eval.errors import SpecError
from eval.progress import ProgressFn
from eval.result import Interval
from eval.scoring import SHARPNESS, Answers, Score, Subject, score_answers
from eval.spec import Frozen
from eval.speedup import Bootstrap
from eval.variants import Change
from eval.walk import walk_row

CONFIDENCE = 0.95
"""That none of all comparisons errs: its rest is shared out among them (Bonferroni)."""
LEAST_PROMPTS = 8
"""With fewer, an interval by prompt says nothing."""
LEAST_LOSS_GAIN = 0.002
"""Of the loss. The smallest corruption seen cost 0.0048 of it; an epsilon of 1e-6 for 1e-5, which
nobody need mend, under 0.00004."""
LEAST_LENGTH_GAIN = 0.02
"""Of the acceptance length over all positions."""
_NUM_RESAMPLES = 9999


class Tried(Frozen):
    """One change against the reading before it."""

    subject: str
    value: str
    num_prompts: int
    num_entries: int
    length: float
    """1 + accepted / entries over all positions, with the change."""
    length_gain: Interval
    """Of the acceptance length, relative."""
    loss: float
    """Nats per step, with the change."""
    loss_gain: Interval
    """What the loss falls by, relative."""
    is_better: bool


class NotJudged(Frozen):
    """A change that these answers say nothing about."""

    subject: str
    value: str
    reason: str


class Counterfactuals(Frozen):
    """What was found of one drafter."""

    k: int
    num_prompts: int
    num_entries: int
    walk_length: Interval
    """Acceptance length of the walk, as configured: what a server counts."""
    length: Interval
    """The same over all positions."""
    loss: float
    """Nats per step, as configured."""
    found: tuple[Tried, ...]
    """Changes for the better, the weightiest first, each with those before it in place."""
    tried: tuple[Tried, ...]
    """Every change alone against the config."""
    not_judged: tuple[NotJudged, ...]


class _Sums(NamedTuple):
    """By prompt, [N]."""

    num: npt.NDArray[np.float64]
    """Entries."""
    accepted: npt.NDArray[np.float64]
    losses: npt.NDArray[np.float64]
    """Nats per step, at the sharpness that suits all prompts together best."""


def run_counterfactuals(
    subject: Subject,
    changes: Sequence[Change],
    answers: Answers,
    progress: ProgressFn = lambda *_: None,
) -> Counterfactuals:
    """Compares every change with the config; the best is put in place, and the rest tried again.

    So a change that only helps against what another one mends is not named, and of two corruptions
    both are found.

    Args:
        subject: The drafter.
        changes: What may have been lost.
        answers: What the verifier said, with the states of `needed_layers`.
        progress: Told what is done, changes tried and changes in all.

    Raises:
        SpecError: Too few prompts, or states that do not fit.
    """
    judged, left_out = _split(changes, answers)
    bootstrap = Bootstrap(
        confidence=1 - (1 - CONFIDENCE) / max(1, len(judged)), num_resamples=_NUM_RESAMPLES
    )
    configured = before = score_answers(subject, answers)
    first: list[Tried] = []
    found: list[Tried] = []
    while judged:
        round_ = []
        for number, change in enumerate(judged):
            progress("other readings of the config", number, len(judged))
            after = score_answers(_apply(subject, change), answers)
            round_.append((_compare(change, before, after, answers.k, bootstrap), change, after))
        first = first or [tried for tried, _, _ in round_]
        better = [item for item in round_ if item[0].is_better]
        if not better:
            break
        best, change, before = max(better, key=lambda item: item[0].loss_gain.value)
        found.append(best)
        subject = _apply(subject, change)
        judged = [one for one in judged if one.subject != change.subject]
    return _summarise(configured, answers.k, found, first, left_out)


def _split(
    changes: Sequence[Change], answers: Answers
) -> tuple[list[Change], tuple[NotJudged, ...]]:
    """Changes that enough prompts are long enough for, and the others with the reason."""
    rows, k = answers.rows, answers.k
    num_prompts = len({row.id for row in rows})
    if num_prompts < LEAST_PROMPTS:
        raise SpecError(
            f"expected answers to at least {LEAST_PROMPTS} prompts, found {num_prompts}",
            "give more prompts: the intervals are by prompt",
        )
    longest = max(row.num_entries + 1 for row in rows)
    judged, left_out = [], []
    for change in changes:
        begin = change.first_entry
        num_long = len(
            {r.id for r in rows if any(s.whole_entries(k).stop > begin for s in r.spans)}
        )
        if num_long < LEAST_PROMPTS:
            reason = (
                f"{num_long} of {num_prompts} prompts are, with their answers, longer than "
                f"{begin} tokens, {LEAST_PROMPTS} must be; the longest has {longest}"
            )
        elif change.window is not None and change.window >= longest:
            reason = f"not told apart from no window: the longest answer ends at token {longest}"
        else:
            judged.append(change)
            continue
        value = str(change.value)
        left_out.append(NotJudged(subject=change.subject, value=value, reason=reason))
    return judged, tuple(left_out)


def _apply(subject: Subject, change: Change) -> Subject:
    return Subject(
        subject.facts.model_copy(update=dict(change.facts)),
        {**subject.tensors, **change.tensors},
        subject.parts,
    )


def _sum_prompts(scores: Sequence[Score], k: int, first_entry: int) -> _Sums:
    """Over the entries whose K next tokens all lie in their answer."""
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for row, depths, losses in scores:
        total = sums.setdefault(row.id, np.zeros(2 + len(SHARPNESS)))
        for span in row.spans:
            whole = span.whole_entries(k)
            part = slice(max(whole.start, first_entry), whole.stop)
            kept = np.clip(depths[part], 0, k)
            total += [len(kept), kept.sum(), *losses[:, part].sum(1)]
    table = np.array([total for _, total in sorted(sums.items()) if total[0]])
    best = 2 + int(table[:, 2:].sum(0).argmin())
    return _Sums(table[:, 0], table[:, 1], table[:, best] / k)


def _compare(
    change: Change, before: Sequence[Score], after: Sequence[Score], k: int, bootstrap: Bootstrap
) -> Tried:
    old = _sum_prompts(before, k, change.first_entry)
    new = _sum_prompts(after, k, change.first_entry)
    num = int(new.num.sum())
    length_gain = bootstrap.of(
        [new.accepted.tolist(), old.accepted.tolist(), new.num.tolist()],
        lambda a, b, n: (a.sum(-1) - b.sum(-1)) / (n.sum(-1) + b.sum(-1)),
    )
    loss_gain = bootstrap.of(
        [new.losses.tolist(), old.losses.tolist()],
        lambda a, b: (b.sum(-1) - a.sum(-1)) / b.sum(-1),
    )
    is_longer = _is_real(length_gain, LEAST_LENGTH_GAIN)
    is_shorter = length_gain.high is not None and length_gain.high < 0
    return Tried(
        subject=change.subject,
        value=str(change.value),
        num_prompts=len(new.num),
        num_entries=num,
        length=1 + float(new.accepted.sum()) / num,
        length_gain=length_gain,
        loss=float(new.losses.sum()) / num,
        loss_gain=loss_gain,
        is_better=is_longer or (_is_real(loss_gain, LEAST_LOSS_GAIN) and not is_shorter),
    )


def _is_real(gain: Interval, least: float) -> bool:
    """Whether a gain is beyond chance and worth naming."""
    return gain.low is not None and gain.low > 0 and gain.value >= least


def _summarise(
    configured: Sequence[Score],
    k: int,
    found: Sequence[Tried],
    first: Sequence[Tried],
    left_out: tuple[NotJudged, ...],
) -> Counterfactuals:
    sums = _sum_prompts(configured, k, 0)
    walks: dict[str, list[int]] = {}
    for row, depths, _ in configured:
        counts = walk_row(row, depths, k).acceptance
        total = walks.setdefault(row.id, [0, 0])
        total[0] += counts.num_drafts + counts.num_accepted
        total[1] += counts.num_drafts
    drafted = [pair for pair in walks.values() if pair[1]]
    bootstrap = Bootstrap(confidence=CONFIDENCE)
    return Counterfactuals(
        k=k,
        num_prompts=len(sums.num),
        num_entries=int(sums.num.sum()),
        walk_length=bootstrap.ratio([pair[0] for pair in drafted], [pair[1] for pair in drafted]),
        length=bootstrap.ratio((sums.num + sums.accepted).tolist(), sums.num.tolist()),
        loss=float(sums.losses.sum() / sums.num.sum()),
        found=tuple(found),
        tried=tuple(first),
        not_judged=left_out,
    )
