"""Parts of a page for people: one HTML document, complete in itself; no script, no network.

Whatever text comes from outside is escaped here or by `cell`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from eval.result import Interval

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
.wide { overflow-x: auto }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ccc }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.flag { background: #fff3cd; padding: .2rem .6rem; border-left: 4px solid #d39e00 }
svg { width: 100%; height: auto } dt { font-weight: 600 } small { color: #555 }
"""
_RUN_ID = re.compile(r"(run:[0-9a-f]{8})[0-9a-f]{24}")


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """The whole document; `parts` are markup, the title is text."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def table(columns: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text and numbers."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(cell, row)) + "</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def cell(value: object) -> str:
    """One cell; whole numbers stand on the right."""
    kind = ' class="n"' if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


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
