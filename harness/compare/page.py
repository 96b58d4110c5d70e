"""A comparison as one page for whoever decides: complete in itself, no script, no network."""

from collections.abc import Iterator, Sequence
from html import escape

from eval.intervalchart import Mark, interval_chart
from eval.page import glossary, interval_text, page, table
from eval.paired import percent_text
from eval.replaychart import Bar, bar_chart
from eval.report import GLOSSARY
from eval.result import ALL, Interval
from harness.compare.differences import KeyDifference
from harness.compare.document import Compared, Comparison, Figures, Pair

_WORDS = (
    "drafter", "verifier", "step", "K", "acceptance length", "decode speedup", "interval",
    "equal text", "requests at once",
)  # fmt: skip
_PAIRED = {
    "cannot be told apart": "the interval of the difference holds zero: other prompts of this kind "
    "could turn it round. More prompts narrow it; the page says about how many",
}


def render_report(found: Comparison) -> str:
    """The page."""
    parts = [
        f"<h1>{escape(_headline(found))}</h1>",
        *_cautions(found),
        _main_table(found),
        _speed_chart(found),
        *(_pair_part(pair) for pair in found.headline()),
        *_acceptance_part(found),
        _category_table(found),
        _differences("Settings that differ", found, found.params),
        _differences("Where they come from, if not the same", found, found.provenance),
        glossary({word: GLOSSARY[word] for word in _WORDS} | _PAIRED),
        "<h2>Conditions</h2>",
        table(("what", "value"), _conditions(found)),
        "<h2>Evidence</h2>",
        table(("drafter", "what", "value"), _evidence(found.subjects)),
    ]
    return page(_headline(found), parts)


def _headline(found: Comparison) -> str:
    """The one sentence; of several drafters that of the pair with the largest difference."""
    pairs = [pair for pair in found.headline() if pair.speed]
    if pairs:
        best = max(pairs, key=lambda pair: _ratio(pair).value)
        return best.claim or ""
    if found.headline():
        return found.headline()[0].acceptance
    rows = [row for row in found.figures if row.category == ALL]
    timed = [row for row in rows if row.decode_speedup]
    if timed:
        top = max(timed, key=lambda row: _value(row.decode_speedup))
        return f"{top.label}, K = {top.k}: {interval_text(top.decode_speedup)} times as fast"
    if rows:
        row = rows[-1]
        return f"{row.label}, K = {row.k}: {interval_text(row.acceptance_length)} tokens per step"
    return f"{', '.join(one.label for one in found.subjects)}: not measured yet"


def _cautions(found: Comparison) -> Iterator[str]:
    lines = [f"{one.label}: {text}" for one in found.subjects for text in one.cautions]
    lines += [f"{one.label} was not measured" for one in found.subjects if not one.measured_in]
    lines += [f"Unlike {one.what}: {', '.join(one.values)}" for one in found.unlike]
    lines += [
        f"{pair.first} and {pair.second} were measured in two benches: what changed on the machine "
        "in between is in no interval"
        for pair in found.headline()
        if pair.speed and not pair.is_together
    ]
    for line in lines:
        yield f'<p><span class="flag">{escape(line)}</span></p>'


def _main_table(found: Comparison) -> str:
    rows = [
        (row.label, row.k, "-" if row.concurrency is None else row.concurrency,
         interval_text(row.acceptance_length), interval_text(row.decode_speedup), _times(row),
         "-" if row.num_compared is None else f"{row.num_equal} of {row.num_compared}")
        for row in found.figures
        if row.category == ALL
    ]  # fmt: skip
    columns = (
        *("drafter", "K", "requests at once", "acceptance length (tokens per step)"),
        *("decode speedup (times)", "ms per token: alone / with drafter", "equal text"),
    )
    if rows:
        return table(columns, rows)
    keys = list(dict.fromkeys(key for one in found.subjects for key in one.validation))
    return table(
        ("drafter", *keys),
        [
            (one.label, *(f"{one.validation[k]:.3f}" if k in one.validation else "-" for k in keys))
            for one in found.subjects
        ],
    )


def _speed_chart(found: Comparison) -> str:
    is_one = len({(row.k, row.concurrency) for row in found.figures}) == 1
    marks = [
        Mark(row.label if is_one else f"{row.label} K={row.k} c={row.concurrency}", speedup)
        for row in found.figures
        if row.category == ALL and (speedup := row.decode_speedup)
    ]
    return interval_chart(
        marks,
        null=1.0,
        title="decode speedup with intervals",
        note="Decode speedup and its interval; the dashed line is the verifier alone.",
    )


def _pair_part(pair: Pair) -> str:
    """Two drafters: what can be said, the differences by category, drawn and written."""
    marks = [
        Mark(d.category, _in_percent(d.speedup_ratio)) for d in pair.differences if d.speedup_ratio
    ]
    at = "" if pair.concurrency is None else f", {pair.concurrency} at once"
    said = [pair.claim, pair.acceptance] if pair.claim else [pair.acceptance]
    rows = [
        (d.category, d.num_prompts,
         percent_text(d.speedup_ratio) if d.speedup_ratio else "-",
         d.acceptance_difference.text() if d.acceptance_difference else "-")
        for d in pair.differences
    ]  # fmt: skip
    return "".join(
        (
            f"<h2>{escape(pair.second)} against {escape(pair.first)}, K = {pair.k}{at}</h2>",
            *(f"<p>{escape(text[:1].upper() + text[1:] if text.startswith('the ') else text)}.</p>"
              for text in said),
            interval_chart(
                marks, null=0.0, digits=1, unit=" %", title="difference in speed by category",
                note="How much faster, in per cent, prompt by prompt; what reaches over the dashed "
                "line cannot be told apart.",
            ),
            table(("kind of prompt", "prompts", "faster by", "accepted tokens per step"), rows),
        )
    )  # fmt: skip


def _acceptance_part(found: Comparison) -> Iterator[str]:
    """Accepted at position 1 to K, of each drafter at its first point."""
    first: dict[str, Figures] = {}
    for row in found.figures:
        if row.category == ALL and row.acceptance_rate_at:
            first.setdefault(row.label, row)
    if first:
        yield "<h2>Accepted at each position of a draft</h2>"
    for row in first.values():
        bars = [
            Bar(f"position {index}", rate, f"{rate:.1%}")
            for index, rate in enumerate(row.acceptance_rate_at, 1)
        ]
        yield f"<h3>{escape(row.label)}, K = {row.k}</h3>"
        yield bar_chart(bars, 0.0, 1.0, f"acceptance by position of {row.label}")


def _category_table(found: Comparison) -> str:
    rows = [
        (row.label, row.k, "-" if row.concurrency is None else row.concurrency, row.category,
         row.num_prompts, interval_text(row.acceptance_length), interval_text(row.decode_speedup))
        for row in found.figures
        if row.category != ALL
    ]  # fmt: skip
    if not rows:
        return ""
    columns = ("drafter", "K", "requests at once", "kind of prompt", "prompts")
    return "<h2>By kind of prompt</h2>" + table(
        (*columns, "acceptance length", "decode speedup"), rows
    )


def _differences(title: str, found: Comparison, differences: Sequence[KeyDifference]) -> str:
    if not differences:
        return ""
    labels = [one.label for one in found.subjects]
    rows = [(one.key, *(value or "-" for value in one.values)) for one in differences]
    return f"<h2>{escape(title)}</h2>" + table(("key", *labels), rows)


def _conditions(found: Comparison) -> list[tuple[object, ...]]:
    return list(found.conditions.items()) or [("measured", "nothing yet")]


def _evidence(subjects: Sequence[Compared]) -> list[tuple[object, ...]]:
    return [
        (one.label, what, value)
        for one in subjects
        for what, value in (
            ("reference", one.reference),
            ("SHA-256 of the weights", one.digest),
            ("training run", one.run_id),
            ("measured in", one.measured_in),
            ("its run", one.measurement_run_id),
        )
        if value
    ]


def _times(row: Figures) -> str:
    if row.tpot_ms is None or row.baseline_tpot_ms is None:
        return "-"
    return f"{row.baseline_tpot_ms.value:.1f} / {row.tpot_ms.value:.1f}"


def _in_percent(ratio: Interval) -> Interval:
    low, high = (None if end is None else 100 * (end - 1) for end in (ratio.low, ratio.high))
    return Interval(value=100 * (ratio.value - 1), low=low, high=high)


def _ratio(pair: Pair) -> Interval:
    found = pair.differences[0].speedup_ratio
    assert found is not None  # noqa: S101 - pairs with a sentence on speed were timed
    return found


def _value(interval: Interval | None) -> float:
    return interval.value if interval else 0.0
