"""What a promotion rests on: the newest finished bench that measured all candidates together."""

from collections.abc import Sequence
from typing import NamedTuple

from eval.result import BenchResult, BenchRow
from harness.config.policy import Policy
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import measurements, names
from harness.tracking.records import Checkpoint, RunStatus, RunSummary
from harness.tracking.resolve import ResolvedDrafter, resolve_drafter
from harness.tracking.store import Store


class Evidence(NamedTuple):
    """A finished bench that measured a candidate."""

    bench: RunSummary
    result: BenchResult
    row: BenchRow
    """The candidate's row: all prompts, lowest concurrency, the K that ranks best."""


def find_evidence(
    candidates: Sequence[ResolvedDrafter], policy: Policy, store: Store
) -> dict[str, Evidence]:
    """The newest finished bench that took every candidate as input, by reference.

    Raises:
        ConfigError: There is none, or it measured other weights.
    """
    wanted = {names.TAG_MODEL_INPUT.format(model_id=known(c).model_id): "1" for c in candidates}
    runs = store.find_runs(kind=names.KIND_BENCH, tags=wanted, status=RunStatus.FINISHED, limit=1)
    again = "harness bench " + " ".join(f"--drafter {c.reference}" for c in candidates)
    if not runs:
        what = "this drafter" if len(candidates) == 1 else "these drafters together"
        raise ConfigError(f"no finished bench measured {what}: there is no evidence", again)
    result = measurements.read_bench_result(store, runs[0].run_id)
    found = {}
    for candidate in candidates:
        row = _row_of(result, candidate, policy)
        if row is None:
            raise ConfigError(
                f"bench {runs[0].name!r} ({runs[0].run_id}) has {candidate.reference} as input, "
                f"but no result for its weights (root digest {candidate.digest})",
                again,
            )
        found[candidate.reference] = Evidence(runs[0], result, row)
    return found


def resolve_checkpoint(reference: str, settings: Settings, store: Store) -> ResolvedDrafter:
    """A reference to a checkpoint of the store; a bare path or hub id is refused."""
    drafter = resolve_drafter(reference, settings, store)
    if drafter.checkpoint is None:
        raise ConfigError(
            f"expected a checkpoint of the store, found {reference!r}, of which it knows nothing",
            "promote run:<id>, run:<id>@<epoch> or models:/<name>/<version>",
        )
    return drafter


def known(drafter: ResolvedDrafter) -> Checkpoint:
    """The checkpoint behind what `resolve_checkpoint` returned."""
    assert drafter.checkpoint is not None  # noqa: S101 - seen to by `resolve_checkpoint`
    return drafter.checkpoint


def _row_of(result: BenchResult, drafter: ResolvedDrafter, policy: Policy) -> BenchRow | None:
    lowest = min(result.spec.concurrency)
    rows = [
        row for row in result.pooled() if row.digest == drafter.digest and row.concurrency == lowest
    ]
    return max(rows, key=lambda row: rank(row, policy), default=None)


def figure_of(row: BenchRow, policy: Policy) -> float | None:
    """The figure of a row that the policy ranks by."""
    interval = row.decode_speedup
    if policy.rank_by == names.METRIC_ACCEPTANCE_LENGTH:
        if row.acceptance_length is None:
            return None
        interval = row.acceptance_length
    return interval.value


def rank(row: BenchRow, policy: Policy) -> float:
    """A sort key: rows without the figure come last."""
    figure = figure_of(row, policy)
    return float("-inf") if figure is None else figure
