"""What came out of a measurement: one typed JSON document, and a frame of it for analysis.

Absent is None, never zero. Times are milliseconds, rates are fractions, lengths are tokens.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError

from eval.counters import AcceptanceCounts
from eval.errors import MeasurementError, SpecError
from eval.files import write_atomic
from eval.parityresult import ParityReport
from eval.records import CeilingPoint, EngineRecord, StepCost, SwapRecord
from eval.spec import BenchSpec, Frozen

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "baseline"
ALL = "all"
SCHEMA_VERSION = 1


class Interval(Frozen):
    """A figure and the interval around it; low and high are None with fewer than two prompts."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def relative_half_width(self) -> float | None:
        """Half of the interval's width over the value."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)

    def text(self, digits: int = 2) -> str:
        """`1.90 [1.73, 2.11]`; the figure alone where there is no interval."""
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


class PromptSample(Frozen):
    """One prompt in one arm: sums over its turns. The unit of every interval."""

    arm: str
    """Drafter name, or `baseline` for the verifier alone."""
    k: int | None
    concurrency: int
    session: str
    """Engines that ran side by side or one after the other share it; ratios pair within it."""
    prompt_id: str
    category: str
    num_turns: int
    num_prompt_tokens: int
    num_tokens: int
    num_decode_tokens: int
    """Tokens after the first chunk of each turn: what `decode_s` was spent on."""
    decode_s: float
    ttft_s: float
    """Sum over turns of the time to the first token."""
    latency_s: float
    acceptance: AcceptanceCounts | None
    is_equal: bool | None = None
    """Whether all token ids equal the baseline's; None for the baseline, or without token ids."""

    @property
    def num_undrafted_steps(self) -> int:
        """Decode steps in which nothing was proposed, as an n-gram proposer has many of.

        Each gave one token; what drafts and their accepted tokens do not explain came from them.
        """
        counts = self.acceptance
        if counts is None:
            return self.num_decode_tokens
        return max(self.num_decode_tokens - counts.num_drafts - counts.num_accepted, 0)


class Divergence(Frozen):
    """The first token of an answer that differs from the baseline's."""

    prompt_id: str
    turn: int
    position: int
    """Index of the token in the answer."""
    expected: int | None
    """Baseline's token id; None where its answer had ended."""
    found: int | None
    gap: float | None = None
    """Baseline's logprob of its own token less that of the other one (nats); None if unknown."""
    is_near_tie: bool = False


class Lossless(Frozen):
    """Greedy answers against the baseline's, token by token."""

    num_compared: int
    num_equal: int
    divergences: tuple[Divergence, ...] = ()

    @property
    def num_broken(self) -> int:
        """Answers that differ where the baseline saw no near tie."""
        return sum(not divergence.is_near_tie for divergence in self.divergences)

    @property
    def is_broken(self) -> bool:
        """Whether there is such an answer."""
        return self.num_broken > 0


class TokenSpread(Frozen):
    """How long the answers were, in tokens."""

    total: int
    mean: float
    minimum: int
    median: float
    maximum: int


class BaselineRow(Frozen):
    """The verifier alone, at one concurrency, in one category."""

    concurrency: int
    category: str
    num_prompts: int
    tpot_ms: Interval
    ttft_ms: Interval
    tokens_per_s: float
    """Output tokens per second of wall time, prefill included."""
    drift: float | None = None
    """TPOT of the last pass over that of the first, less 1; None if it was measured once."""


class AcceptanceRow(Frozen):
    """Acceptance of a drafter at a smaller K, measured in an engine of a larger one; no speed."""

    drafter: str
    k: int
    category: str
    num_prompts: int
    acceptance: AcceptanceCounts
    acceptance_length: Interval | None
    acceptance_rate_at: tuple[float, ...]


class BenchRow(Frozen):
    """One drafter at one K and concurrency, in one category or over all prompts pooled."""

    drafter: str
    digest: str | None
    k: int
    concurrency: int
    category: str
    num_prompts: int
    num_answers: int
    acceptance: AcceptanceCounts
    acceptance_length: Interval | None
    """1 + accepted / drafts, pooled; None when nothing was drafted."""
    acceptance_length_by_prompt: Interval | None
    """Mean over prompts of each prompt's own acceptance length."""
    acceptance_length_emitted: Interval | None
    """Tokens that drafts emitted / drafts: without tokens that were accepted and then cut off."""
    tokens_per_step: Interval | None = None
    """Over all decode steps, those without a draft included; equal to the one above for drafters
    that propose in each step."""
    acceptance_rate: Interval | None
    acceptance_rate_at: tuple[float, ...]
    conditional_acceptance_rate_at: tuple[float | None, ...]
    decode_speedup: Interval
    """Pooled baseline TPOT over pooled TPOT, paired by prompt."""
    decode_speedup_by_prompt: Interval
    """Geometric mean over prompts of baseline TPOT over TPOT."""
    throughput_ratio: Interval
    """Tokens per second of request time over the baseline's, prefill included."""
    tpot_ms: Interval
    baseline_tpot_ms: Interval
    ttft_ms: Interval
    tokens_per_s: float
    num_output_tokens: TokenSpread
    step_cost: float | None
    """Time of one step with speculation over one plain step: the break-even acceptance length."""
    why: str | None
    foreign_cpu_share: float | None = None
    """Of the machine's CPU time, what other processes took while this row and its baseline ran."""
    lossless: Lossless | None = None
    flags: tuple[str, ...] = ()
    """What a reader must know before believing the row; empty is good."""


class BenchResult(Frozen):
    """A whole measurement with all that is needed to judge it or to run it again."""

    schema_version: int = SCHEMA_VERSION
    spec: BenchSpec
    prompts_digest: str
    pairing: str
    """interleaved: blocks alternate between engines; bracketed: baseline before and after."""
    idle_cost: float | None
    """CPU share that an idle engine takes, measured; None where it was not asked for."""
    stopped_because: str
    environment: dict[str, str]
    engines: tuple[EngineRecord, ...]
    swaps: tuple[SwapRecord, ...] = ()
    swap_checks: tuple[str, ...] = ()
    """Drafters changed in place whose counts were equal in a fresh engine."""
    started_at: str
    duration_s: float
    generation_s: float
    """Time that requests were under way: what is left of `duration_s` after this and `lifecycle_s`
    is the harness's own."""
    lifecycle_s: float = 0.0
    """Time in which servers were started, warmed up and stopped, and other measurements awaited."""
    baseline: tuple[BaselineRow, ...]
    results: tuple[BenchRow, ...]
    acceptance_rows: tuple[AcceptanceRow, ...] = ()
    step_costs: tuple[StepCost, ...] = ()
    ceilings: tuple[CeilingPoint, ...] = ()
    parity: ParityReport | None = None
    """The same outputs replayed without a server; None where that was not asked for."""
    samples: tuple[PromptSample, ...]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a result document; raises SpecError when it is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise SpecError(f"{path} is no bench result: {error}") from error

    def write(self, path: Path) -> None:
        """Writes the document whole or not at all."""
        write_atomic(path, self.model_dump_json(indent=1))

    def pooled(self) -> tuple[BenchRow, ...]:
        """The rows over all prompts, one for each drafter, K and concurrency."""
        return tuple(row for row in self.results if row.category == ALL)

    @property
    def best(self) -> BenchRow:
        """The pooled row with the largest decode speedup at the lowest concurrency.

        Drafters go before other proposers, which are there to compare with.
        """
        lowest = min(self.spec.concurrency)
        own = {drafter.name for drafter in self.spec.drafters}
        rows = [row for row in self.pooled() if row.concurrency == lowest]
        rows = [row for row in rows if row.drafter in own] or rows
        if not rows:
            raise MeasurementError("no answer had a second token, so there is no speed to compare")
        return max(rows, key=lambda row: row.decode_speedup.value)

    def best_k(self) -> dict[int, BenchRow]:
        """The fastest pooled row at each concurrency."""
        best: dict[int, BenchRow] = {}
        for row in self.pooled():
            held = best.get(row.concurrency)
            if held is None or row.decode_speedup.value > held.decode_speedup.value:
                best[row.concurrency] = row
        return best

    def to_frame(self) -> "pd.DataFrame":
        """One row a prompt and arm: sums from which every figure can be computed again."""
        # Late: pandas takes half a second, which whoever only reads the document need not wait.
        import pandas as pd  # noqa: PLC0415

        return pd.DataFrame([_flatten(sample) for sample in self.samples])


def _flatten(sample: PromptSample) -> dict[str, object]:
    row = sample.model_dump(exclude={"acceptance"})
    tokens = sample.num_decode_tokens
    row["tpot_ms"] = 1e3 * sample.decode_s / tokens if tokens else None
    counts = sample.acceptance
    if counts is not None:
        row |= counts.model_dump(exclude={"accepted_at"})
        row |= {f"accepted_at_{i}": count for i, count in enumerate(counts.accepted_at)}
    return row


def categories_of(samples: Iterable[PromptSample]) -> tuple[str, ...]:
    """The categories in the order of their first appearance."""
    return tuple(dict.fromkeys(sample.category for sample in samples))
