"""Parts of a page for people: one HTML document, complete in itself; no script, no network.

Whatever text comes from outside is escaped here or by `cell`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from eval.result import Interval

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --line: #d0d7de; --soft: #59636e;
  --mark: #0b62a8; --flag: #fff3cd; --edge: #d39e00; --said: #cfe8fb }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #3d444d;
  --soft: #9198a1; --mark: #58a6ff; --flag: #3a2f0b; --said: #12395c } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.6rem; line-height: 1.25 } h2 { font-size: 1.2rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
.wide { overflow-x: auto } .wide svg { min-width: 40rem; max-width: 60rem }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top }
td { overflow-wrap: anywhere; min-width: 5.5rem } td.n, th.n { min-width: 1rem }
td:first-child { overflow-wrap: break-word }
.n { text-align: right; font-variant-numeric: tabular-nums }
.flag { background: var(--flag); padding: .2rem .6rem; border-left: 4px solid var(--edge);
  display: inline-block }
svg { width: 100%; height: auto } svg text { fill: currentColor } .grid { stroke: var(--line) }
.slim { max-width: 36rem } .slim text { paint-order: stroke; stroke: var(--paper);
  stroke-width: 4px }
.null { stroke: var(--soft); stroke-dasharray: 4 3 } .mark { stroke: var(--mark) }
.dot { fill: var(--mark) } dt { font-weight: 600 } small, .soft { color: var(--soft) }
@media (max-width: 40rem) { body { font-size: 15px; margin: 1rem auto } h1 { font-size: 1.3rem }
  th, td { padding: .25rem .3rem; font-size: .8rem } td { min-width: 3.6rem } }
@media print { :root { --ink: #000; --paper: #fff; --line: #bbb; --soft: #444; --mark: #0b62a8;
  --flag: #fff; --said: #e6f2fb } body { max-width: none; margin: 0; font-size: 11pt }
  .wide { overflow: visible } .wide svg { min-width: 0 } tr, svg, figure { break-inside: avoid }
  h2 { break-after: avoid } }
"""
_RUN_ID = re.compile(r"(run:[0-9a-f]{8})[0-9a-f]{24}")


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """The whole document; `parts` are markup, the title is text."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def table(columns: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text and numbers."""
    body_rows = [tuple(row) for row in rows]
    first = body_rows[0] if body_rows else ()
    kinds = [_kind(value) for value in first]
    head = "".join(
        f"<th{kinds[index] if index < len(kinds) else ''}>{escape(column)}</th>"
        for index, column in enumerate(columns)
    )
    body = "".join("<tr>" + "".join(map(cell, row)) + "</tr>" for row in body_rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def cell(value: object) -> str:
    """One cell; whole numbers stand on the right."""
    return f"<td{_kind(value)}>{escape(str(value))}</td>"


def _kind(value: object) -> str:
    return ' class="n"' if isinstance(value, int) else ""


def glossary(words: Mapping[str, str]) -> str:
    """Words and what they mean."""
    return "".join(
        ("<h2>Words</h2><dl>",
         *(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in words.items()),
         "</dl>")
    )  # fmt: skip


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Drafters' names as a page shows them, shortened where that still tells them apart.

    Of a folder the last part is shown, of a run's id the first 8 digits.
    """
    short = [_shorten(name) for name in names]
    return {
        name: brief if short.count(brief) == 1 else name
        for name, brief in zip(names, short, strict=True)
    }


def _shorten(name: str) -> str:
    if ":" in name:
        return _RUN_ID.sub(r"\1", name)
    return name.rstrip("/").rpartition("/")[2]


def interval_text(interval: Interval | None) -> str:
    """`2.03 (1.91 to 2.16)`; nothing is a dash."""
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f}"
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def ends(interval: Interval) -> tuple[float, float, float]:
    """Low, value and high; where there is no interval, the value thrice."""
    value = interval.value
    low = value if interval.low is None else interval.low
    return low, value, value if interval.high is None else interval.high
