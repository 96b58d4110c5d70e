"""What was measured of drafters: their figures side by side, and each two prompt by prompt."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from eval.assembly import bootstrap_of
from eval.conditions import Unlike, bench_conditions, replay_conditions, unlike
from eval.paired import (
    Arm,
    acceptance_sentence,
    bench_arm,
    paired_differences,
    replay_arm,
    speed_sentence,
)
from eval.replayresult import DrafterReplay, ReplayResult
from eval.result import BenchResult, BenchRow
from eval.speedup import Bootstrap
from harness.compare.document import Figures, Pair
from harness.compare.subjects import Measurement, Subject
from harness.tracking import names


class Measured(NamedTuple):
    """A subject whose measurement is known."""

    label: str
    measurement: Measurement
    arm: str


class Point(NamedTuple):
    """What a drafter was measured at; a replay has no concurrency."""

    k: int
    concurrency: int | None

    def __str__(self) -> str:
        return f"K = {self.k}" + (f", {self.concurrency} at once" if self.concurrency else "")


def measured_ones(labels: Sequence[str], subjects: Sequence[Subject]) -> list[Measured]:
    """Those of which something was measured."""
    return [
        Measured(label, subject.measurement, subject.arm)
        for label, subject in zip(labels, subjects, strict=True)
        if subject.measurement is not None and subject.arm is not None
    ]


def unlike_conditions(found: Sequence[Measured]) -> tuple[Unlike, ...]:
    """What keeps these measurements from being compared; empty: nothing."""
    different = unlike([_conditions(one, found) for one in found])
    if found and not different and not shared_points(found):
        values = tuple("; ".join(map(str, _points(one))) for one in found)
        different = (Unlike(what="K and requests at once", values=values),)
    return different


def shared_points(found: Sequence[Measured]) -> list[Point]:
    """What all were measured at: the lowest concurrency first, then the first one's fastest K."""
    if not found:
        return []
    shared = set(_points(found[0])).intersection(*(_points(one) for one in found[1:]))
    return [point for point in _points(found[0]) if point in shared]


def conditions_of(found: Sequence[Measured]) -> dict[str, str]:
    """Under what the first one was measured; empty where nothing was."""
    return _conditions(found[0], found) if found else {}


def figures_of(one: Measured) -> list[Figures]:
    """Every figure of a drafter, over all prompts and by category."""
    document = one.measurement.document
    if isinstance(document, BenchResult):
        return [_timed(one.label, row) for row in document.results if row.drafter == one.arm]
    return [
        Figures(
            label=one.label,
            k=row.k,
            concurrency=None,
            category=row.category,
            num_prompts=row.num_prompts,
            acceptance_length=row.acceptance_length,
            acceptance_rate_at=row.acceptance_rate_at,
            decode_speedup=None,
        )
        for row in _replay_of(document, one.arm).rows
    ]


def pairs_of(found: Sequence[Measured], *, is_forced: bool) -> Iterator[Pair]:
    """Each one against the first, at every point that all share; forced: else at its own best.

    Intervals by category are made at the first point alone.
    """
    if len(found) < 2:  # noqa: PLR2004 - a pair is of two
        return
    points = shared_points(found)
    first, bootstrap = found[0], _bootstrap_of(found[0])
    for other in found[1:]:
        for index, point in enumerate(points):
            yield _pair(first, other, point, point, bootstrap, has_categories=index == 0)
        if not points and is_forced:
            own, others = _points(first)[0], _points(other)[0]
            yield _pair(first, other, own, others, bootstrap, has_categories=True)


def cautions_of(one: Measured) -> tuple[str, ...]:
    """The flags of its rows over all prompts."""
    document = one.measurement.document
    if isinstance(document, ReplayResult):
        return ()
    rows = [row for row in document.pooled() if row.drafter == one.arm]
    return tuple(
        dict.fromkeys(
            f"K = {row.k}, {row.concurrency} at once: {flag}" for row in rows for flag in row.flags
        )
    )


def _pair(
    first: Measured,
    other: Measured,
    point: Point,
    other_point: Point,
    bootstrap: Bootstrap,
    *,
    has_categories: bool,
) -> Pair:
    differences = paired_differences(
        _arm(first, point), _arm(other, other_point), bootstrap, is_by_category=has_categories
    )
    whole = differences[0]
    is_timed = whole.speedup_ratio is not None
    return Pair(
        first=first.label,
        second=other.label,
        k=point.k,
        concurrency=point.concurrency,
        second_k=other_point.k,
        second_concurrency=other_point.concurrency,
        is_together=first.measurement.document == other.measurement.document,
        is_flagged=bool(cautions_of(first) or cautions_of(other)),
        speed=speed_sentence(whole, first.label, other.label) if is_timed else None,
        acceptance=acceptance_sentence(whole, first.label, other.label),
        differences=differences,
    )


def _timed(label: str, row: BenchRow) -> Figures:
    lossless = row.lossless
    return Figures(
        label=label,
        k=row.k,
        concurrency=row.concurrency,
        category=row.category,
        num_prompts=row.num_prompts,
        acceptance_length=row.acceptance_length,
        acceptance_rate_at=row.acceptance_rate_at,
        decode_speedup=row.decode_speedup,
        baseline_tpot_ms=row.baseline_tpot_ms,
        tpot_ms=row.tpot_ms,
        num_equal=lossless.num_equal if lossless else None,
        num_compared=lossless.num_compared if lossless else None,
    )


def _arm(one: Measured, point: Point) -> Arm:
    document = one.measurement.document
    if isinstance(document, ReplayResult):
        return replay_arm(_replay_of(document, one.arm), point.k)
    return bench_arm(document, one.arm, point.k, point.concurrency or 0)


def _points(one: Measured) -> list[Point]:
    """What it was measured at: the lowest concurrency first, there the fastest K first."""
    document = one.measurement.document
    if isinstance(document, ReplayResult):
        return [Point(k, None) for k in range(document.k, 0, -1)]

    def order(row: BenchRow) -> tuple[int, float]:
        return row.concurrency, -row.decode_speedup.value

    rows = [row for row in document.pooled() if row.drafter == one.arm]
    return [Point(row.k, row.concurrency) for row in sorted(rows, key=order)]


def _conditions(one: Measured, found: Sequence[Measured]) -> dict[str, str]:
    document, run = one.measurement.document, one.measurement.run
    kind = {"measured by": "bench" if isinstance(document, BenchResult) else "replay"}
    if isinstance(document, ReplayResult):
        return kind | replay_conditions(document)
    is_known = all(
        other.measurement.run and names.TAG_VERIFIER_DIGEST in other.measurement.run.tags
        for other in found
    )
    digest = run.tags[names.TAG_VERIFIER_DIGEST] if is_known and run else None
    return kind | bench_conditions(document, digest)


def _bootstrap_of(one: Measured) -> Bootstrap:
    document = one.measurement.document
    if isinstance(document, BenchResult):
        return bootstrap_of(document.spec)
    return Bootstrap(confidence=document.confidence)


def _replay_of(document: ReplayResult, arm: str) -> DrafterReplay:
    return next(one for one in document.drafters if one.drafter == arm)
