"""A result as one HTML page for someone who has never seen this project: no script, no network."""

from collections.abc import Sequence
from html import escape
from typing import Any

from eval.intervalchart import Mark, interval_chart
from eval.page import glossary, interval_text, page, short_names, table
from eval.parityresult import ParityReport, ParityRow
from eval.reporttables import (
    acceptance_table,
    fastest_text,
    smaller_k_table,
    step_table,
    times_table,
)
from eval.result import ALL, BenchResult, BenchRow

_MOST_UNEQUAL = 5

GLOSSARY = {
    "verifier": "the large language model whose answers are wanted",
    "drafter": "a small model that proposes several tokens; the verifier accepts or rejects them, "
    "so the text stays the verifier's own",
    "token": "a piece of text, about three quarters of an English word",
    "step": "one pass of the verifier, with the drafter's proposals checked in it",
    "K": "tokens proposed in each step",
    "acceptance length": "tokens gained per step, from 1 (nothing accepted) to K + 1",
    "decode speedup": "time per token of the verifier alone over that with the drafter; 1: no gain",
    "break-even": "the acceptance length below which the drafter costs more time than it saves",
    "interval": "in brackets: where the figure would lie for other prompts of this kind, in 95 of "
    "100 cases unless said otherwise",
    "equal text": "answers that are token by token those of the verifier alone",
    "requests at once": "how many answers were being written at the same time",
}
_ORDERS = {
    "interleaved": "the verifier alone and with a drafter side by side, in turns",
    "bracketed": "the verifier alone before and after everything else",
}


def render_html(result: BenchResult) -> str:
    """The page, complete in itself."""
    full, result = result, _with_short_names(result)
    spec = result.spec
    pooled = result.pooled()
    parts = [
        f"<h1>{escape(_headline(result))}</h1>",
        _caution(pooled),
        f"<p>{len(spec.prompts)} prompts ({escape(spec.prompts_name)}), at most "
        f"{spec.sampling.max_tokens} tokens each, temperature {spec.sampling.temperature:g}. "
        f"{spec.confidence:.0%} intervals over prompts. Order of work: {_ORDERS[result.pairing]}; "
        f"{escape(result.stopped_because)}. {escape(fastest_text(result))}</p>",
        _main_table(result),
        _chart(pooled),
        *(f"<p>{_explanation(row)}</p>" for row in pooled),
        times_table(pooled),
        acceptance_table(pooled),
        smaller_k_table([row for row in result.acceptance_rows if row.category == ALL]),
        step_table(result.step_costs),
        _category_table([row for row in result.results if row.category != ALL]),
        _ceiling_table(result),
        _parity_table(result.parity),
        glossary(GLOSSARY),
        "<h2>Conditions</h2>",
        table(("what", "value"), _conditions(full)),
    ]
    return page(_headline(result), parts)


def _with_short_names(result: BenchResult) -> BenchResult:
    """Every drafter by the name that is shown of it."""
    short = short_names(result.spec.arm_names)

    def renamed(items: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            i.model_copy(update={"drafter": short.get(i.drafter, i.drafter)}) for i in items
        )

    spec = result.spec
    drafters = tuple(d.model_copy(update={"name": short[d.name]}) for d in spec.drafters)
    update: dict[str, Any] = {
        name: renamed(getattr(result, name))
        for name in ("results", "acceptance_rows", "step_costs", "ceilings")
    }
    if result.parity is not None:
        update["parity"] = result.parity.model_copy(update={"rows": renamed(result.parity.rows)})
    return result.model_copy(
        update={**update, "spec": spec.model_copy(update={"drafters": drafters})}
    )


def _caution(rows: Sequence[BenchRow]) -> str:
    count = sum(bool(row.flags) for row in rows)
    if not count:
        return ""
    text = f"{count} of {len(rows)} rows have a warning below: read it before using their figures."
    return f'<p><span class="flag">{text}</span></p>'


def _headline(result: BenchResult) -> str:
    best = result.best
    low = best.decode_speedup.low
    if low is not None and low > 1:
        verdict = "faster than the verifier alone"
    elif best.decode_speedup.high is not None and best.decode_speedup.high < 1:
        verdict = "slower than the verifier alone"
    else:
        verdict = "not clearly faster or slower than the verifier alone"
    return f"{best.drafter}, K = {best.k}: {best.decode_speedup.value:.2f}x, {verdict}"


def _main_table(result: BenchResult) -> str:
    rows = [
        (
            row.drafter,
            row.k,
            row.concurrency,
            interval_text(row.acceptance_length),
            interval_text(row.decode_speedup),
            f"{row.baseline_tpot_ms.value:.1f} / {row.tpot_ms.value:.1f}",
            f"{row.lossless.num_equal} of {row.lossless.num_compared}" if row.lossless else "-",
        )
        for row in result.pooled()
    ]
    columns = (
        *("drafter", "K", "requests at once", "acceptance length (tokens per step)"),
        *("decode speedup (times)", "ms per token: alone / with drafter", "equal text"),
    )
    return table(columns, rows)


def _category_table(rows: Sequence[BenchRow]) -> str:
    if not rows:
        return ""
    columns = ("drafter", "K", "requests at once", "kind of prompt", "prompts")
    body = [
        (row.drafter, row.k, row.concurrency, row.category, row.num_prompts,
         interval_text(row.acceptance_length), interval_text(row.decode_speedup))
        for row in rows
    ]  # fmt: skip
    return "<h2>By kind of prompt</h2>" + table(
        (*columns, "acceptance length", "decode speedup"), body
    )


def _ceiling_table(result: BenchResult) -> str:
    if not result.ceilings:
        return ""
    columns = (
        "size of",
        "K",
        "requests at once",
        "acceptance length",
        "decode speedup",
        "found by",
    )
    body = [
        (p.drafter, p.k, p.concurrency, f"{p.acceptance_length:.2f}", f"{p.decode_speedup:.2f}",
         "measurement" if p.is_measured else "acceptance length over step cost")
        for p in result.ceilings
    ]  # fmt: skip
    return "<h2>What a drafter of this size would bring</h2>" + table(columns, body)


def _parity_table(parity: ParityReport | None) -> str:
    if parity is None:
        return ""
    body = [
        (row.drafter, row.k, row.concurrency, f"{row.num_equal} of {row.num_requests}",
         f"{row.served.acceptance_length:.3f}" if row.served.num_drafts else "-",
         f"{row.replayed.acceptance_length:.3f}" if row.replayed.num_drafts else "-",
         "yes" if row.is_passed else "NO")
        for row in parity.rows
    ]  # fmt: skip
    columns = ("drafter", "K", "requests at once", "requests with equal counts")
    return (
        "<h2>The same answers computed without a server</h2>"
        f"<p>{parity.num_answers} answers replayed in {escape(parity.dtype)}; what was measured on "
        f"{escape(parity.device)}.</p>"
        + table((*columns, "acceptance length served", "replayed", "agrees"), body)
        + "".join(
            f'<p><span class="flag">{escape(f"{row.drafter}, K = {row.k}: {row.verdict}")}</span>'
            f"<br>{_unequal_text(row)}</p>"
            for row in parity.rows
            if not row.is_passed
        )
    )


def _unequal_text(row: ParityRow) -> str:
    """The first requests that differ, drafts by number of accepted tokens."""
    shown = [
        f"{u.prompt_id} turn {u.turn}: served {list(u.served)}, replayed {list(u.replayed)}"
        for u in row.unequal[:_MOST_UNEQUAL]
    ]
    return escape("; ".join(shown))


def _explanation(row: BenchRow) -> str:
    name = f"{row.drafter}, K = {row.k}, {row.concurrency} at once"
    rates = ", ".join(f"{rate:.1%}" for rate in row.acceptance_rate_at)
    text = f"<b>{escape(name)}</b>: {escape(row.why or 'nothing was drafted')}."
    if rates:
        text += f" Accepted at position 1 to {row.k}: {rates}."
    return text + "".join(f'<br><span class="flag">{escape(flag)}</span>' for flag in row.flags)


def _chart(rows: Sequence[BenchRow]) -> str:
    """Speedups with their intervals on one axis; the line is the verifier alone."""
    return interval_chart(
        [Mark(f"{row.drafter} K={row.k} c={row.concurrency}", row.decode_speedup) for row in rows],
        null=1.0,
        title="decode speedup with intervals",
        note="Decode speedup and its interval; the dashed line is the verifier alone. "
        "c: requests at once.",
    )


def _conditions(result: BenchResult) -> list[tuple[object, ...]]:
    facts: list[tuple[object, ...]] = [
        ("measured", f"{result.started_at}, {result.duration_s:.0f} s"),
        ("prompts digest", result.prompts_digest),
        ("verifier", result.spec.server.verifier.name),
        *((d.name, f"SHA-256 {d.digest or '-'}") for d in result.spec.drafters),
        *(
            (f"engine {e.name}", f"vLLM {e.vllm_version}, started in {e.start_s:.0f} s")
            for e in result.engines
        ),
    ]
    return [*facts, *result.environment.items()]
