"""Figures with their intervals on one axis as inline SVG: what is off the dashed line is clear.

So narrow that a phone shows all of it; each label stands above its line.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from eval.page import ends
from eval.result import Interval

_WIDTH, _LEFT, _RIGHT, _ROW = 480, 24, 456, 42
_LABEL_CHARACTERS = 54
_LEAST_APART = 0.08
"""Of the axis: ticks nearer than that would be written over one another."""


class Mark(NamedTuple):
    """One figure and what it is of."""

    label: str
    interval: Interval


def interval_chart(
    marks: Sequence[Mark], *, null: float, title: str, note: str, digits: int = 2, unit: str = ""
) -> str:
    """A dot and a line for each figure, and a dashed line at the value of no difference.

    Args:
        marks: From the top down; without any there is no chart.
        null: Where the dashed line is.
        title: What a reader who does not see it is told.
        note: The line below it.
        digits: Of the ticks, behind the point.
        unit: Written behind the ticks.
    """
    if not marks:
        return ""
    bounds = [end for mark in marks for end in ends(mark.interval)]
    low, high = min([*bounds, null]), max([*bounds, null])
    margin = 0.05 * (high - low) or 0.05 * max(abs(high), 1.0)
    least, most = low - margin, high + margin
    height = _ROW * len(marks) + 40

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (value - least) / (most - least)

    drawn = [
        f'<line class="null" x1="{x(null):.1f}" y1="10" x2="{x(null):.1f}" y2="{height - 25}"/>'
    ]
    ticks = [null] + [e for e in (low, high) if abs(e - null) > _LEAST_APART * (most - least)]
    drawn += [
        f'<text x="{x(at):.1f}" y="{height - 8}" text-anchor="middle">{at:.{digits}f}{unit}</text>'
        for at in ticks
    ]
    for index, mark in enumerate(marks):
        y = 34 + _ROW * index
        start, value, end = (x(at) for at in ends(mark.interval))
        drawn.append(
            f'<text x="0" y="{y - 12}">{escape(_short(mark.label))}</text>'
            f'<line class="mark" x1="{start:.1f}" y1="{y}" x2="{end:.1f}" y2="{y}" '
            f'stroke-width="3"/><circle class="dot" cx="{value:.1f}" cy="{y}" r="6"/>'
        )
    return (
        f'<svg class="slim" viewBox="0 0 {_WIDTH} {height}" font-size="14" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawn)}</svg>'
        f"<p><small>{escape(note)}</small></p>"
    )


def _short(label: str) -> str:
    """The end of a long label: names of one kind differ there."""
    return label if len(label) <= _LABEL_CHARACTERS else f"...{label[3 - _LABEL_CHARACTERS :]}"
