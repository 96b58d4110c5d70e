import numpy as np
import pytest

from eval.result import Interval
from eval.speedup import Bootstrap

BOOTSTRAP = Bootstrap(num_resamples=500)


def test_a_pooled_ratio_is_of_sums_not_a_mean_of_ratios() -> None:
    assert BOOTSTRAP.ratio([1, 30], [1, 10]).value == pytest.approx(31 / 11)


def test_paired_rates_are_divided() -> None:
    interval = BOOTSTRAP.ratio_of_ratios(([40, 80], [10, 20]), ([20, 40], [10, 20]))
    assert interval.value == 2.0
    assert (interval.low, interval.high) == (2.0, 2.0)


def test_the_geometric_mean_weighs_every_prompt_alike() -> None:
    assert BOOTSTRAP.geometric_mean_ratio([4, 1], [1, 1]).value == pytest.approx(2.0)


def test_one_prompt_gives_a_figure_without_an_interval() -> None:
    interval = BOOTSTRAP.mean([3.0])
    assert (interval.value, interval.low, interval.high) == (3.0, None, None)
    assert interval.relative_half_width is None


def test_an_interval_as_text_has_its_ends_where_there_are_any() -> None:
    assert Interval(value=1.9, low=1.731, high=2.11).text() == "1.90 [1.73, 2.11]"
    assert Interval(value=1.9, low=1.731, high=2.11).text(3) == "1.900 [1.731, 2.110]"
    assert Interval(value=1.9).text() == "1.90"


def test_the_interval_is_the_same_each_time_and_holds_the_value() -> None:
    rng = np.random.default_rng(5)
    drafts, accepted = rng.integers(20, 40, 30), rng.integers(10, 60, 30)
    one, two = BOOTSTRAP.ratio(accepted, drafts), BOOTSTRAP.ratio(accepted, drafts)
    assert one == two
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.value < one.high


def test_about_95_of_100_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(100):
        length = rng.integers(20, 60, 40)
        accepted = rng.binomial(length, 0.4)
        interval = BOOTSTRAP.ratio(accepted, length)
        hits += interval.low <= 0.4 <= interval.high
    assert 85 <= hits <= 100


def test_pairing_removes_what_prompts_have_in_common() -> None:
    rng = np.random.default_rng(3)
    base = rng.uniform(10, 100, 40)
    arm = base / 1.5 * rng.normal(1, 0.01, 40)
    ones = np.ones(40)
    paired = BOOTSTRAP.ratio_of_ratios((base, ones), (arm, ones))
    shuffled = BOOTSTRAP.ratio_of_ratios((base, ones), (rng.permutation(arm), ones))
    assert paired.high - paired.low < (shuffled.high - shuffled.low) / 10
