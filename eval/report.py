"""A result as one HTML page for someone who has never seen this project: no script, no network."""

from collections.abc import Sequence
from html import escape

from eval.page import ends, glossary, interval_text, page, table
from eval.parityresult import ParityReport, ParityRow
from eval.result import ALL, BenchResult, BenchRow

_MOST_UNEQUAL = 5

_GLOSSARY = {
    "drafter": "a small model that proposes several tokens; the large one, the verifier, accepts "
    "or rejects them, so the text stays the verifier's own",
    "K": "tokens proposed in each step",
    "acceptance length": "tokens gained per step, from 1 (nothing accepted) to K + 1",
    "decode speedup": "time per token of the verifier alone over that with the drafter; 1: no gain",
    "interval": "where the figure would lie for other prompts of this kind, in 95 of 100 cases "
    "unless said otherwise",
    "equal text": "answers that are token by token those of the verifier alone",
}


def render_html(result: BenchResult) -> str:
    """The page, complete in itself."""
    spec = result.spec
    parts = [
        f"<h1>{escape(_headline(result))}</h1>",
        f"<p>{len(spec.prompts)} prompts ({escape(spec.prompts_name)}), at most "
        f"{spec.sampling.max_tokens} tokens each, temperature {spec.sampling.temperature:g}. "
        f"{spec.confidence:.0%} intervals over prompts. Order of work: {result.pairing}; "
        f"{escape(result.stopped_because)}.</p>",
        _main_table(result),
        _chart(result.pooled()),
        *(f"<p>{_explanation(row)}</p>" for row in result.pooled()),
        _category_table([row for row in result.results if row.category != ALL]),
        _ceiling_table(result),
        _parity_table(result.parity),
        glossary(_GLOSSARY),
        "<h2>Conditions</h2>",
        table(("what", "value"), _conditions(result)),
    ]
    return page(_headline(result), parts)


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
        *("drafter", "K", "requests at once", "acceptance length", "decode speedup"),
        *("ms per token: alone / with drafter", "equal text"),
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
    bounds = [end for row in rows for end in ends(row.decode_speedup)]
    least, most = min([*bounds, 1.0]) * 0.95, max([*bounds, 1.0]) * 1.05
    height = 30 * len(rows) + 40

    def x(value: float) -> float:
        return 300 + 580 * (value - least) / (most - least)

    marks = [f'<line x1="{x(1):.1f}" y1="10" x2="{x(1):.1f}" y2="{height - 25}" stroke="#888"/>']
    marks.append(f'<text x="{x(1):.1f}" y="{height - 8}" text-anchor="middle">1.0</text>')
    for index, row in enumerate(rows):
        y = 25 + 30 * index
        low, value, high = ends(row.decode_speedup)
        label = f"{row.drafter[-30:]} K={row.k} c={row.concurrency}"
        marks.append(f'<text x="290" y="{y + 5}" text-anchor="end">{escape(label)}</text>')
        marks.append(
            f'<line x1="{x(low):.1f}" y1="{y}" x2="{x(high):.1f}" y2="{y}" '
            f'stroke="#1f5fa8" stroke-width="3"/>'
            f'<circle cx="{x(value):.1f}" cy="{y}" r="6" fill="#1f5fa8"/>'
        )
    return (
        f'<svg viewBox="0 0 900 {height}" font-size="13" role="img" '
        f'aria-label="decode speedup with intervals">{"".join(marks)}</svg>'
    )


def _conditions(result: BenchResult) -> list[tuple[object, ...]]:
    facts: list[tuple[object, ...]] = [
        ("measured", f"{result.started_at}, {result.duration_s:.0f} s"),
        ("prompts digest", result.prompts_digest),
        ("verifier", result.spec.server.verifier.name),
        *((f"digest of {d.name}", d.digest or "-") for d in result.spec.drafters),
        *(
            (f"engine {e.name}", f"vLLM {e.vllm_version}, started in {e.start_s:.0f} s")
            for e in result.engines
        ),
    ]
    return [*facts, *result.environment.items()]
