"""What a promotion rests on: the newest finished bench that measured all candidates together."""

from collections.abc import Sequence
from typing import NamedTuple

from eval.result import BenchResult, BenchRow
from harness.config.policy import Figure
from harness.tracking import measurements, names
from harness.tracking.records import Checkpoint, RunStatus, RunSummary
from harness.tracking.store import Store

_NUM_BENCHES = 20
"""Joint benches that are looked at, newest first."""


class Evidence(NamedTuple):
    """A finished bench and what it says of one drafter."""

    bench: RunSummary
    result: BenchResult
    row: BenchRow
    """The drafter's row: all prompts, lowest concurrency, the K that ranks best."""


class Search(NamedTuple):
    """The newest bench that measured some checkpoints together, or why there is none."""

    bench: RunSummary | None
    result: BenchResult | None
    passed_over: tuple[str, ...]
    """Benches that had them all as input and are no evidence, each with the reason."""


def find_joint_bench(
    checkpoints: Sequence[Checkpoint], store: Store, verifier_digest: str | None = None
) -> Search:
    """The newest finished bench that measured these very weights together.

    Args:
        checkpoints: What it must have measured.
        store: The open store.
        verifier_digest: Of the verifier that they were trained for; None takes any.

    Raises:
        TrackingError: A result was changed after it was written.
    """
    wanted = names.input_tags(c.model_id for c in checkpoints)
    runs = store.find_runs(
        kind=names.KIND_BENCH, tags=wanted, status=RunStatus.FINISHED, limit=_NUM_BENCHES
    )
    passed_over: list[str] = []
    for run in runs:
        verifier = run.tags.get(names.TAG_VERIFIER_DIGEST)
        if verifier_digest and verifier != verifier_digest:
            passed_over.append(
                f"{run.name} ({run.run_id}) ran another verifier: expected digest "
                f"{verifier_digest[:12]}, found {str(verifier)[:12]}"
            )
            continue
        result = measurements.read_bench_result(store, run.run_id)
        measured = {row.digest for row in measurements.ranked_rows(result)}
        missing = [c for c in checkpoints if c.digest not in measured]
        if missing:
            passed_over.append(
                f"{run.name} ({run.run_id}) has no result for the weights of "
                f"{', '.join(c.name for c in missing)}"
            )
            continue
        return Search(run, result, tuple(passed_over))
    return Search(None, None, tuple(passed_over))


def read_evidence(search: Search, digest: str, figure: Figure) -> Evidence | None:
    """What the bench that was found says of some weights; None where none was found."""
    if search.bench is None or search.result is None:
        return None
    row = best_row(search.result, digest, figure)
    return Evidence(search.bench, search.result, row) if row else None


def best_row(result: BenchResult, digest: str, figure: Figure) -> BenchRow | None:
    """Of some weights the row at the K that ranks best; None where they were not measured."""
    rows = [row for row in measurements.ranked_rows(result) if row.digest == digest]
    return max(rows, key=lambda row: rank(row, figure), default=None)


def figure_of(row: BenchRow, figure: Figure) -> float | None:
    """The figure of a row that a policy ranks by."""
    if figure == names.METRIC_DECODE_SPEEDUP:
        return row.decode_speedup.value
    return row.acceptance_length.value if row.acceptance_length else None


def rank(row: BenchRow, figure: Figure) -> float:
    """A sort key: rows without the figure come last."""
    found = figure_of(row, figure)
    return float("-inf") if found is None else found
