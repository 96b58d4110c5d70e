"""The statistics of a prepared corpus as one HTML page: no script, no network."""

from html import escape

from eval.page import glossary, page, table
from eval.replaychart import Bar, bar_chart
from harness.corpus.statistics import CEILING_K, CoverageRow, Lengths, Statistics

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 260, 60, 40
_RIGHT = 60
_MOST_CATEGORIES = 30

GLOSSARY = {
    "token": "a piece of text, about three quarters of an English word",
    "answer token": "one that the verifier itself made: only these are learned",
    "row": "one sequence of the training: a conversation, or a part of one",
    "batch": "rows that are trained on together, up to a number of tokens; the rest is padding",
    "draft vocabulary": "the tokens that a drafter can propose: the most frequent ones in answers",
    "coverage": "share of the answer tokens that are in the draft vocabulary",
    "ceiling": f"acceptance length at K = {CEILING_K} of a drafter that is right wherever its "
    f"vocabulary lets it be, at most {CEILING_K + 1}",
}


def render_statistics(statistics: Statistics) -> str:
    """The page, complete in itself."""
    s = statistics
    title = f"{s.num_tokens:,} tokens, {s.num_loss_tokens:,} of them answers"
    share = s.num_loss_tokens / s.num_tokens
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{s.num_conversations:,} conversations in {s.num_rows:,} rows; {share:.0%} of the "
        f"tokens are answers, of {s.num_distinct_tokens:,} kinds. In batches of "
        f"{s.packing.batch_tokens:,} tokens: {s.packing.num_batches:,} batches, "
        f"{s.packing.fill:.1%} of them filled.</p>",
        _dropped(s),
        "<h2>Draft vocabularies</h2>",
        _coverage_chart(s.coverage),
        _coverage_table(s.coverage),
        "<h2>Categories</h2>",
        _categories(s),
        "<h2>Lengths of rows</h2>",
        _lengths(s.rows, "rows by tokens"),
        "<h2>Answer tokens of a row</h2>",
        _lengths(s.answers, "rows by answer tokens"),
        glossary(GLOSSARY),
    ]
    return page(title, parts)


def _dropped(statistics: Statistics) -> str:
    if not statistics.dropped:
        return ""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in statistics.dropped.items())
    return f'<p><span class="flag">Left out: {escape(reasons)}</span> (dropped.jsonl)</p>'


def _coverage_table(rows: tuple[CoverageRow, ...]) -> str:
    body = [(row.draft_vocab_size, f"{row.coverage:.2%}", f"{row.ceiling:.2f}") for row in rows]
    return table(("draft vocabulary", "coverage", f"ceiling at K = {CEILING_K}"), body)


def _coverage_chart(rows: tuple[CoverageRow, ...]) -> str:
    """Coverage upwards from 0 to 1, vocabulary sizes across as in the table."""
    marks = []
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        marks.append(
            f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth * 10} %</text>'
        )
    places = [(_x(index, len(rows)), _y(row.coverage)) for index, row in enumerate(rows)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks.append(f'<polyline class="mark" fill="none" points="{path}"/>')
    for (x, y), row in zip(places, rows, strict=True):
        marks.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            f'<text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle">{row.ceiling:.2f}</text>'
            f'<text x="{x:.1f}" y="{_HEIGHT - 18}" text-anchor="middle">'
            f"{row.draft_vocab_size:,}</text>"
        )
    caption = (
        f"coverage by size of the draft vocabulary; at the points the ceiling at K = {CEILING_K}"
    )
    marks.append(
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 2}" text-anchor="middle">{escape(caption)}</text>'
    )
    return (
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12" role="img" '
        f'aria-label="{escape(caption)}">{"".join(marks)}</svg></div>'
    )


def _x(index: int, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (index + 0.5) / count


def _y(share: float) -> float:
    return 20 + (_HEIGHT - 20 - _BOTTOM) * (1 - share)


def _categories(statistics: Statistics) -> str:
    total = statistics.num_loss_tokens
    rows = [
        (
            row.category,
            row.num_rows,
            row.num_tokens,
            row.num_loss_tokens,
            f"{row.num_loss_tokens / total:.1%}",
        )
        for row in statistics.categories[:_MOST_CATEGORIES]
    ]
    more = len(statistics.categories) - len(rows)
    note = f"<p>and {more} more (statistics.json)</p>" if more else ""
    return table(("category", "rows", "tokens", "answer tokens", "share"), rows) + note


def _lengths(lengths: Lengths, label: str) -> str:
    bars = [
        Bar(f"{low:,} to {high - 1:,}", count, f"{count:,}")
        for low, high, count in zip(lengths.edges, lengths.edges[1:], lengths.counts, strict=False)
    ]
    line = (
        f"<p>least {lengths.least:,}, 5 % {lengths.p5:,}, median {lengths.median:,}, mean "
        f"{lengths.mean:,.1f}, 95 % {lengths.p95:,}, most {lengths.most:,}</p>"
    )
    return line + bar_chart(bars, 0, max(lengths.counts), label)
