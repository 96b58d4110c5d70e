import re

import pytest

from eval.intervalchart import Mark, interval_chart
from eval.result import Interval


def draw(*marks: Mark) -> str:
    return interval_chart(marks, null=1.0, title="speed", note="dashed: equal")


def ticks(chart: str) -> list[str]:
    return re.findall(r'text-anchor="middle">([^<]+)<', chart)


def test_a_mark_lies_on_the_side_of_the_dashed_line_that_its_interval_is_on() -> None:
    chart = draw(
        Mark("faster", Interval(value=1.5, low=1.2, high=1.8)),
        Mark("unclear", Interval(value=1.1, low=0.9, high=1.3)),
    )
    (null,) = (float(x) for x in re.findall(r'class="null" x1="([\d.]+)"', chart))
    lines = re.findall(r'class="mark" x1="([\d.]+)" y1="\d+" x2="([\d.]+)"', chart)
    faster, unclear = [(float(low), float(high)) for low, high in lines]
    assert null < faster[0] < faster[1]
    assert unclear[0] < null < unclear[1]
    dots = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)"', chart)]
    assert [sum(faster) / 2, sum(unclear) / 2] == pytest.approx(dots, abs=0.1)
    assert (faster[1] - faster[0]) / (unclear[1] - unclear[0]) == pytest.approx(1.5, abs=0.01)
    assert ticks(chart) == ["1.00", "0.90", "1.80"]


def test_a_tick_that_would_be_written_over_another_is_left_out() -> None:
    assert ticks(draw(Mark("a", Interval(value=1.4, low=1.01, high=1.8)))) == ["1.00", "1.80"]


def test_a_figure_without_an_interval_is_a_dot_and_nothing_at_all_is_no_chart() -> None:
    chart = draw(Mark("one prompt", Interval(value=1.4)))
    ((x1, x2),) = re.findall(r'class="mark" x1="([\d.]+)" y1="\d+" x2="([\d.]+)"', chart)
    assert x1 == x2
    assert draw() == ""


def test_of_a_long_label_the_end_is_shown_and_nothing_of_it_is_markup() -> None:
    chart = draw(Mark("first" + "x" * 80 + "<b>last", Interval(value=1.4)))
    (shown,) = re.findall(r">(\.\.\.[^<]+)<", chart)
    assert shown.endswith("x&lt;b&gt;last")
    assert "first" not in chart
