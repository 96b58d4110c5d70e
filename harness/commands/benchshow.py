"""A measurement for people: tables of rows, and a line of why below each."""

from collections.abc import Mapping

from eval.parityresult import ParityReport
from eval.records import StepCost
from eval.result import ALL, BenchResult, BenchRow
from harness.render import interval_text, show_table, show_text, warn
from harness.tracking import names

_MOST_UNEQUAL = 5
_HANGING = 4


def show_result(result: BenchResult) -> None:
    """Tables of a result, each row explained by a line below."""
    spec = result.spec
    named = names.short_references(spec.arm_names)
    show_table(
        f"{len(spec.prompts)} prompts, {spec.sampling.max_tokens} tokens at most, "
        f"{spec.confidence:.0%} intervals by prompt, {result.pairing}",
        ("drafter", "K", "conc.", "acceptance length", "decode speedup", "TPOT ms", "equal"),
        [_row(row, named) for row in result.pooled()],
    )
    best = {(row.drafter, row.k, row.concurrency) for row in _fastest(result)}
    by_category = [
        row
        for row in result.results
        if row.category != ALL and (row.drafter, row.k, row.concurrency) in best
    ]
    if by_category:
        show_table(
            "by category" + (", each drafter at its fastest K" if len(spec.k) > 1 else ""),
            ("drafter", "K", "conc.", "category", "asked", "acceptance length", "decode speedup"),
            [_category_row(row, named) for row in by_category],
        )
    for row in result.pooled():
        rates = ", ".join(f"{rate:.3f}" for rate in row.acceptance_rate_at)
        title = f"{named[row.drafter]} K={row.k} c={row.concurrency}"
        show_text(f"{title}: {row.why or 'nothing was drafted'}", hanging=_HANGING)
        show_text(f"  accepted at position 1..{row.k}: {rates or '-'}")
        for flag in row.flags:
            warn(f"{title}: {flag}", hanging=_HANGING)
    if result.acceptance_rows:
        show_table(
            "acceptance at a smaller K, in the engine of the largest one",
            ("drafter", "K", "acceptance length"),
            [
                (named[r.drafter], r.k, interval_text(r.acceptance_length))
                for r in result.acceptance_rows
                if r.category == ALL
            ],
        )
    if result.ceilings:
        show_table(
            "speed at an acceptance length, for a drafter of this size",
            ("drafter", "K", "conc.", "acceptance length", "decode speedup", "measured"),
            [
                (named[p.drafter], p.k, p.concurrency, p.acceptance_length,
                 p.decode_speedup, p.is_measured)
                for p in result.ceilings
            ],
        )  # fmt: skip
    for cost in result.step_costs:
        show_text(_cost_text(cost, named), hanging=_HANGING)
    if result.parity is not None:
        _show_parity(result.parity, named)
    if len(spec.k) > 1:
        for concurrency, row in result.best_k().items():
            name = named[row.drafter]
            show_text(f"fastest at concurrency {concurrency}: {name} with K={row.k}")


def _fastest(result: BenchResult) -> list[BenchRow]:
    """Of each drafter and concurrency the row of the fastest K."""
    rows: dict[tuple[str, int], BenchRow] = {}
    for row in result.pooled():
        held = rows.get((row.drafter, row.concurrency))
        if held is None or row.decode_speedup.value > held.decode_speedup.value:
            rows[row.drafter, row.concurrency] = row
    return list(rows.values())


def _show_parity(parity: ParityReport, named: Mapping[str, str]) -> None:
    for row in parity.rows:
        title = f"{named[row.drafter]} K={row.k} c={row.concurrency}"
        show_text(f"parity {title}: {row.verdict}", hanging=_HANGING)
        for request in row.unequal[:_MOST_UNEQUAL]:
            warn(
                f"parity {title}: {request.prompt_id} turn {request.turn} served "
                f"{list(request.served)}, replayed {list(request.replayed)} (drafts by number of "
                "accepted tokens)",
                hanging=_HANGING,
            )
    states = "were kept" if parity.states_s is None else f"took {parity.states_s:.1f} s"
    show_text(
        f"parity: {parity.num_answers} answers of {parity.num_answer_tokens} tokens in "
        f"{parity.dtype}, replayed in {parity.replay_s:.1f} s; their hidden states {states}",
        hanging=_HANGING,
    )


def _cost_text(cost: StepCost, named: Mapping[str, str]) -> str:
    steps = ", ".join(f"{step:.1f} ms at K={k}" for k, step in sorted(cost.step_ms.items()))
    text = (
        f"{named[cost.drafter]} c={cost.concurrency}: a step takes {steps}; "
        f"a plain one {cost.plain_step_ms:.1f} ms"
    )
    if cost.fixed_ms is None or cost.per_token_ms is None:
        return text
    return f"{text}; {cost.fixed_ms:.1f} ms and {cost.per_token_ms:.1f} ms per proposed token"


def _row(row: BenchRow, named: Mapping[str, str]) -> tuple[object, ...]:
    tpot = f"{row.baseline_tpot_ms.value:.1f} -> {row.tpot_ms.value:.1f}"
    equal = f"{row.lossless.num_equal}/{row.lossless.num_compared}" if row.lossless else None
    return (
        named[row.drafter],
        row.k,
        row.concurrency,
        interval_text(row.acceptance_length),
        interval_text(row.decode_speedup),
        tpot,
        equal,
    )


def _category_row(row: BenchRow, named: Mapping[str, str]) -> tuple[object, ...]:
    return (
        named[row.drafter],
        row.k,
        row.concurrency,
        row.category,
        row.num_prompts,
        interval_text(row.acceptance_length),
        interval_text(row.decode_speedup),
    )
