"""Tables of the page of a bench that stand behind its first one: times, steps, smaller K."""

from collections.abc import Sequence

from eval.page import interval_text, table
from eval.records import StepCost
from eval.result import AcceptanceRow, BenchResult, BenchRow

_ARM = ("drafter", "K", "requests at once")


def times_table(rows: Sequence[BenchRow]) -> str:
    """First token, throughput and answer lengths, of each drafter, K and concurrency."""
    body = [
        (*_arm(row), interval_text(row.ttft_ms), f"{row.tokens_per_s:.1f}",
         interval_text(row.throughput_ratio), f"{row.num_output_tokens.mean:.0f}",
         f"{row.num_output_tokens.minimum} to {row.num_output_tokens.maximum}")
        for row in rows
    ]  # fmt: skip
    columns = ("first token after (ms)", "tokens per second", "throughput, times the verifier's")
    lengths = ("tokens of an answer, mean", "least to most")
    return "<h2>Times and answers</h2>" + table((*_ARM, *columns, *lengths), body)


def acceptance_table(rows: Sequence[BenchRow]) -> str:
    """Every form of acceptance, of each drafter, K and concurrency."""
    body = [
        (*_arm(row), interval_text(row.acceptance_length_emitted),
         interval_text(row.acceptance_length_by_prompt),
         "-" if row.acceptance_rate is None else f"{row.acceptance_rate.value:.1%}",
         _percents(row.acceptance_rate_at), _percents(row.conditional_acceptance_rate_at))
        for row in rows
    ]  # fmt: skip
    columns = ("acceptance length of what arrived", "mean over prompts", "tokens accepted")
    rates = ("accepted at position 1, 2, ...", "of those whose predecessor was")
    return "<h2>Acceptance in other forms</h2>" + table((*_ARM, *columns, *rates), body)


def step_table(costs: Sequence[StepCost]) -> str:
    """How long a step takes, and what it is made of."""
    if not costs:
        return ""
    body = [
        (cost.drafter, cost.concurrency, f"{cost.plain_step_ms:.1f}",
         ", ".join(f"K = {k}: {step:.1f}" for k, step in sorted(cost.step_ms.items())),
         _ms(cost.fixed_ms), _ms(cost.per_token_ms))
        for cost in costs
    ]  # fmt: skip
    columns = ("drafter", "requests at once", "verifier alone (ms)", "with the drafter (ms)")
    parts = ("part that does not grow with K (ms)", "each proposed token (ms)")
    return "<h2>What a step costs</h2>" + table((*columns, *parts), body)


def smaller_k_table(rows: Sequence[AcceptanceRow]) -> str:
    """Acceptance at a smaller K, counted in the engine of the largest one."""
    if not rows:
        return ""
    body = [(row.drafter, row.k, interval_text(row.acceptance_length)) for row in rows]
    return (
        "<h2>Acceptance at a smaller K</h2><p>Counted in the engine of the largest K; no speed is "
        "claimed.</p>" + table(("drafter", "K", "acceptance length"), body)
    )


def fastest_text(result: BenchResult) -> str:
    """The fastest K at each number of requests; nothing with a single K."""
    if len(result.spec.k) == 1:
        return ""
    found = [
        f"{row.drafter} with K = {row.k} at {concurrency} request{'s' * (concurrency > 1)} at once"
        for concurrency, row in result.best_k().items()
    ]
    return f"Fastest: {'; '.join(found)}."


def _arm(row: BenchRow) -> tuple[str, int, int]:
    return row.drafter, row.k, row.concurrency


def _percents(rates: Sequence[float | None]) -> str:
    return ", ".join("-" if rate is None else f"{rate:.0%}" for rate in rates) or "-"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
