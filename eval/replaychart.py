"""Charts of a replay as inline SVG: acceptance length over K, and bars over groups of tokens.

Drafters differ by colour and by marker, so that both a colour-blind reader and a print in grey can
tell them. Source of the colours: Okabe and Ito, Color Universal Design.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from eval.page import ends
from eval.replayresult import PositionRow, ReplayRow
from eval.result import ALL, Interval

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#999999")
_MARKERS = ("circle", "square", "triangle", "diamond")
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM, _INNER = 900, 60, 620, 20, 45, 280
_LABEL_CHARACTERS = 26


class Bar(NamedTuple):
    """One bar: what it stands for, how long it is, what is written behind it."""

    label: str
    value: float
    note: str


def length_chart(drafters: Sequence[tuple[str, Sequence[ReplayRow]]]) -> str:
    """Acceptance length of the walk for each K, with intervals; every drafter a line.

    Args:
        drafters: Names as they are shown, and their rows.
    """
    rows = [
        (index, row.k, row.acceptance_length)
        for index, (_, found) in enumerate(drafters)
        for row in found
        if row.category == ALL and row.acceptance_length
    ]
    if not rows:
        return ""
    top = max(ends(length)[2] for _, _, length in rows) * 1.02
    most_k = max(k for _, k, _ in rows)
    frame = _Frame(top, most_k, len(drafters))
    marks = [frame.axes()]
    for index, (name, _) in enumerate(drafters):
        own = [(k, length) for i, k, length in rows if i == index]
        marks.append(frame.line(index, own))
        y = _TOP + 12 + 22 * index
        label = name if len(name) <= _LABEL_CHARACTERS else f"...{name[-_LABEL_CHARACTERS:]}"
        marks.append(_marker(index, _RIGHT + 25, y))
        marks.append(f'<text x="{_RIGHT + 40}" y="{y + 4}">{escape(label)}</text>')
    height = _TOP + max(_INNER, 22 * len(drafters)) + _BOTTOM
    return (
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {height}" font-size="13" role="img" '
        f'aria-label="acceptance length over K with intervals">{"".join(marks)}</svg></div>'
    )


def bar_chart(bars: Sequence[Bar], least: float, most: float, label: str) -> str:
    """Horizontal bars from `least` to `most`, each with its note."""
    width, height = 420, 26
    marks = []
    for index, bar in enumerate(bars):
        y = 6 + height * index
        share = 0.0 if most <= least else (bar.value - least) / (most - least)
        marks.append(
            f'<text x="210" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect x="220" y="{y}" width="{width * min(max(share, 0), 1):.1f}" height="17" '
            f'fill="{_COLOURS[0]}"/>'
            f'<text x="{226 + width * min(max(share, 0), 1):.1f}" y="{y + 13}">'
            f"{escape(bar.note)}</text>"
        )
    return (
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {12 + height * len(bars)}" font-size="13" '
        f'role="img" aria-label="{escape(label)}">{"".join(marks)}</svg></div>'
    )


def position_bars(rows: Sequence[PositionRow]) -> list[Bar]:
    """One bar a group: its length in tokens per step."""
    return [
        Bar(row.label, row.length, f"{row.length:.2f} ({row.share:.0%} of the positions)")
        for row in rows
    ]


class _Frame:
    """The plane of the line chart: K across, acceptance length up from 1."""

    def __init__(self, top: float, most_k: int, num_drafters: int) -> None:
        self._top = max(top, 1.1)
        self._most_k = most_k
        self._num_drafters = num_drafters

    def axes(self) -> str:
        """Lines at whole and half tokens, and the names of both axes."""
        bottom = _TOP + _INNER
        marks = []
        for half in range(2, int(self._top * 2) + 1):
            y = self._y(half / 2)
            marks.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" class="grid"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{half / 2:g}</text>'
            )
        marks += [
            f'<text x="{self._x(k):.1f}" y="{bottom + 18}" text-anchor="middle">{k}</text>'
            for k in range(1, self._most_k + 1)
        ]
        middle = (_LEFT + _RIGHT) / 2
        marks.append(
            f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">'
            f"K, tokens proposed per step; upwards: tokens gained per step</text>"
        )
        return "".join(marks)

    def line(self, index: int, points: Sequence[tuple[int, Interval]]) -> str:
        """One drafter: a line, its intervals, its markers."""
        colour = _COLOURS[index % len(_COLOURS)]
        aside = 7 * (index - (self._num_drafters - 1) / 2) if self._num_drafters > 1 else 0.0
        places = [(self._x(k) + aside, ends(length)) for k, length in points]
        path = " ".join(f"{x:.1f},{self._y(value):.1f}" for x, (_, value, _) in places)
        marks = [f'<polyline points="{path}" fill="none" stroke="{colour}"/>']
        for x, (low, value, high) in places:
            marks.append(
                f'<line x1="{x:.1f}" y1="{self._y(low):.1f}" x2="{x:.1f}" '
                f'y2="{self._y(high):.1f}" stroke="{colour}" stroke-width="3"/>'
            )
            marks.append(_marker(index, x, self._y(value)))
        return "".join(marks)

    def _x(self, k: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (k - 0.5) / self._most_k

    def _y(self, length: float) -> float:
        return _TOP + _INNER * (1 - (length - 1) / (self._top - 1))


def _marker(index: int, x: float, y: float) -> str:
    colour = _COLOURS[index % len(_COLOURS)]
    kind = _MARKERS[index % len(_MARKERS)]
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
    if kind == "square":
        return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="{colour}"/>'
    corners = (
        [(0, -6), (6, 5), (-6, 5)] if kind == "triangle" else [(0, -6), (6, 0), (0, 6), (-6, 0)]
    )
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" fill="{colour}"/>'
