"""From cells to the result document: rows for each arm, K, concurrency and category, and flags."""

from collections.abc import Mapping, Sequence

from eval.analysis import (
    acceptance_length,
    build_baseline_row,
    build_row,
    by_category,
    decode_speedup,
    sum_counts,
)
from eval.cells import ArmKey, Cell
from eval.costs import draw_ceilings, fit_step_costs
from eval.prompts import digest_prompts
from eval.records import EngineRecord, SwapRecord
from eval.result import (
    ALL,
    BASELINE,
    AcceptanceRow,
    BaselineRow,
    BenchResult,
    BenchRow,
    Lossless,
    PromptSample,
)
from eval.samples import build_samples, index_turns, pair_samples
from eval.spec import BenchSpec, Frozen
from eval.speedup import Bootstrap

_FEW_PROMPTS = 8


class Measured(Frozen):
    """All that was seen, before any figure is made of it."""

    cells: tuple[Cell, ...]
    acceptance_cells: tuple[Cell, ...] = ()
    """Of a smaller K than their engine was started with: no times are taken from them."""
    verdicts: dict[ArmKey, Lossless]
    pairing: str
    idle_cost: float | None
    stopped_because: str
    environment: dict[str, str]
    engines: tuple[EngineRecord, ...]
    swaps: tuple[SwapRecord, ...]
    swap_checks: tuple[str, ...]
    lifecycle_s: float = 0.0
    started_at: str
    duration_s: float


def build_result(spec: BenchSpec, measured: Measured) -> BenchResult:
    """The document of a finished measurement."""
    bootstrap = bootstrap_of(spec)
    samples = build_samples(measured.cells, index_turns(measured.cells))
    drifts = {c: baseline_drift(samples, c) for c in spec.concurrency}
    rows = _rows(spec, measured, samples, bootstrap, drifts)
    return BenchResult(
        spec=spec,
        prompts_digest=digest_prompts(spec.prompts),
        pairing=measured.pairing,
        idle_cost=measured.idle_cost,
        stopped_because=measured.stopped_because,
        environment=measured.environment,
        engines=measured.engines,
        swaps=measured.swaps,
        swap_checks=measured.swap_checks,
        started_at=measured.started_at,
        duration_s=measured.duration_s,
        lifecycle_s=measured.lifecycle_s,
        generation_s=sum(c.wall_s for c in (*measured.cells, *measured.acceptance_cells)),
        baseline=tuple(_baseline_rows(measured.cells, samples, bootstrap, drifts)),
        results=tuple(rows),
        acceptance_rows=tuple(_acceptance_rows(measured.acceptance_cells, bootstrap)),
        ceilings=draw_ceilings(spec, rows),
        step_costs=fit_step_costs(rows),
        samples=samples,
    )


def bootstrap_of(spec: BenchSpec) -> Bootstrap:
    """How the intervals of this measurement are made."""
    return Bootstrap(confidence=spec.confidence, num_resamples=spec.num_resamples)


def baseline_for(samples: Sequence[PromptSample], session: str) -> list[PromptSample]:
    """The baseline passes that belong to a session: its own, else those before and after."""
    own = [s for s in samples if s.arm == BASELINE and s.session == session]
    return own or [s for s in samples if s.arm == BASELINE and s.session in {"before", "after"}]


def baseline_drift(samples: Sequence[PromptSample], concurrency: int) -> float | None:
    """TPOT of the last baseline pass over that of the first, less 1; None with a single pass."""
    passes: dict[str, list[PromptSample]] = {}
    for sample in samples:
        if sample.arm == BASELINE and sample.concurrency == concurrency:
            passes.setdefault(sample.session, []).append(sample)
    if len(passes) < 2:  # noqa: PLR2004 - a drift is between two
        return None
    first, *_, last = passes.values()
    pairs = pair_samples(first, last)
    before = sum(b.decode_s for b, _ in pairs) / sum(b.num_decode_tokens for b, _ in pairs)
    after = sum(a.decode_s for _, a in pairs) / sum(a.num_decode_tokens for _, a in pairs)
    return after / before - 1


def is_precise(spec: BenchSpec, cells: Sequence[Cell]) -> bool:
    """Whether speedup and acceptance length of every arm among the cells are known well enough.

    Never while nothing can be paired: a pass of the baseline alone uses all prompts.
    """
    if spec.precision is None:
        return False
    samples = build_samples(cells, {})
    baseline = [s for s in samples if s.arm == BASELINE]
    arms: dict[tuple[str, int | None], list[PromptSample]] = {}
    for sample in samples:
        if sample.arm != BASELINE:
            arms.setdefault((sample.arm, sample.k), []).append(sample)
    if not baseline or not arms:
        return False
    bootstrap = bootstrap_of(spec)
    for own in arms.values():
        speedup = decode_speedup(pair_samples(baseline, own), bootstrap)
        length = acceptance_length(own, bootstrap)
        widths = [i.relative_half_width for i in (speedup, length) if i is not None]
        if any(width is None or width > spec.precision for width in widths):
            return False
    return True


def _baseline_rows(
    cells: Sequence[Cell],
    samples: Sequence[PromptSample],
    bootstrap: Bootstrap,
    drifts: Mapping[int, float | None],
) -> list[BaselineRow]:
    rows: list[BaselineRow | None] = []
    for concurrency, drift in drifts.items():
        own = [s for s in samples if s.arm == BASELINE and s.concurrency == concurrency]
        rate = _tokens_per_s(cells, BASELINE, None, concurrency)
        for category, group in by_category(own):
            rows.append(
                build_baseline_row(
                    group, bootstrap, category=category, tokens_per_s=rate, drift=drift
                )
            )
    return [row for row in rows if row]


def _rows(
    spec: BenchSpec,
    measured: Measured,
    samples: Sequence[PromptSample],
    bootstrap: Bootstrap,
    drifts: Mapping[int, float | None],
) -> list[BenchRow]:
    digests = {drafter.name: drafter.digest for drafter in spec.drafters}
    groups: dict[ArmKey, list[PromptSample]] = {}
    for sample in samples:
        if sample.arm != BASELINE:
            groups.setdefault((sample.arm, sample.k, sample.concurrency), []).append(sample)
    rows: list[BenchRow] = []
    for key, own in groups.items():
        name, k, concurrency = key
        baseline = [
            s for s in baseline_for(samples, own[0].session) if s.concurrency == concurrency
        ]
        for category, group in by_category(own):
            row = build_row(
                baseline,
                group,
                bootstrap,
                digest=digests.get(name),
                k=k or 0,
                category=category,
                tokens_per_s=_tokens_per_s(measured.cells, name, k, concurrency),
            )
            if row is None:
                continue
            row = row.model_copy(
                update={
                    "lossless": measured.verdicts.get(key) if category == ALL else None,
                    "foreign_cpu_share": _foreign_cpu_share(measured.cells, key),
                }
            )
            flags = _flags(spec, row, drifts.get(concurrency))
            rows.append(row.model_copy(update={"flags": flags}))
    return rows


def _cells_of(cells: Sequence[Cell], arm: str, k: int | None, concurrency: int) -> list[Cell]:
    wanted = (arm, k, concurrency)
    return [cell for cell in cells if (cell.key.arm, cell.key.k, cell.key.concurrency) == wanted]


def _acceptance_rows(cells: Sequence[Cell], bootstrap: Bootstrap) -> list[AcceptanceRow]:
    rows: list[AcceptanceRow] = []
    for cell in cells:
        k = cell.key.k or 0
        for category, group in by_category(build_samples([cell], {})):
            counts = sum_counts(group)
            counts = counts.model_copy(update={"accepted_at": counts.accepted_at[:k]})
            rows.append(
                AcceptanceRow(
                    drafter=cell.key.arm,
                    k=k,
                    category=category,
                    num_prompts=len(group),
                    acceptance=counts,
                    acceptance_length=acceptance_length(group, bootstrap),
                    acceptance_rate_at=counts.acceptance_rate_at if counts.num_drafts else (),
                )
            )
    return rows


def _tokens_per_s(cells: Sequence[Cell], arm: str, k: int | None, concurrency: int) -> float:
    own = _cells_of(cells, arm, k, concurrency)
    tokens = sum(answer.num_tokens for cell in own for answer in cell.answers)
    return tokens / sum(cell.wall_s for cell in own)


def _foreign_cpu_share(cells: Sequence[Cell], key: ArmKey) -> float:
    """The larger of the arm's and the baseline's, each a mean over time."""

    def share(name: str, k: int | None) -> float:
        own = _cells_of(cells, name, k, key[2])
        wall_s = sum(cell.wall_s for cell in own)
        return sum(cell.foreign_cpu_share * cell.wall_s for cell in own) / wall_s

    return max(share(key[0], key[1]), share(BASELINE, None))


def _flags(spec: BenchSpec, row: BenchRow, drift: float | None) -> tuple[str, ...]:
    lossless, foreign = row.lossless, row.foreign_cpu_share
    flags: list[str] = []
    if row.acceptance_length is None:
        flags.append("nothing was drafted")
    if row.num_prompts < _FEW_PROMPTS and row.category == ALL:
        flags.append(f"only {row.num_prompts} prompts: the interval is rough")
    if drift is not None and abs(drift) > spec.max_drift:
        flags.append(f"the baseline drifted by {drift:+.0%} during the measurement")
    if foreign is not None and foreign > spec.max_foreign_cpu:
        flags.append(f"other processes took {foreign:.0%} of the CPU: the times are not to be used")
    if lossless and (num := lossless.num_broken):
        flags.append(f"{num} greedy answers differ from the baseline's where it saw no near tie")
    return tuple(flags)
