"""One drafter against another: by hand, by simulation, and in words."""

import numpy as np
import pytest
from fakes.measurements import DRAFTED, make_cell, make_result
from fakes.replays import answer_row, replay_answers

from eval.conditions import bench_conditions, unlike
from eval.counters import AcceptanceCounts
from eval.errors import MeasurementError
from eval.paired import (
    Arm,
    ArmPrompt,
    acceptance_sentence,
    bench_arm,
    paired_differences,
    prompts_needed,
    replay_arm,
    speed_sentence,
)
from eval.result import ALL, Interval
from eval.speedup import Bootstrap

FEW = Bootstrap(num_resamples=500)
CELLS = [
    make_cell("baseline", "before", tpot_s=0.1),
    DRAFTED,
    make_cell("b", "k3-0", tpot_s=0.032, histogram=(3, 3, 3, 1)),
]


def arm(name: str, tpots: list[float], accepted: list[int], baseline_s: float = 0.1) -> Arm:
    """Prompts of 10 tokens and 5 drafts each."""
    prompts = [
        ArmPrompt(
            f"p{i}",
            "ab"[i % 2],
            AcceptanceCounts(num_drafts=5, num_draft_tokens=15, num_accepted=accepted[i]),
            decode_s=10 * tpot,
            num_tokens=10,
            baseline_s=10 * baseline_s,
            num_baseline_tokens=10,
        )
        for i, tpot in enumerate(tpots)
    ]
    return Arm(name, 3, 1, tuple(prompts))


def test_a_difference_that_every_prompt_shows_is_exact() -> None:
    result = make_result(CELLS)
    whole, *_ = paired_differences(bench_arm(result, "a", 3, 1), bench_arm(result, "b", 3, 1), FEW)
    assert whole.speedup_ratio is not None
    assert whole.speedup_ratio.value == pytest.approx(1.25)
    assert whole.acceptance_difference is not None
    assert whole.acceptance_difference.value == pytest.approx(0.2)  # 12 of 10 drafts, not 10
    assert speed_sentence(whole, "A", "B") == "B is faster than A by 25.0 % [25.0, 25.0]"
    assert acceptance_sentence(whole, "A", "B") == (
        "B accepts 0.20 tokens per step more than A [0.20, 0.20]"
    )


def test_the_other_way_round_it_is_slower_and_accepts_fewer() -> None:
    result = make_result(CELLS)
    whole, *_ = paired_differences(bench_arm(result, "b", 3, 1), bench_arm(result, "a", 3, 1), FEW)
    assert speed_sentence(whole, "B", "A") == "A is slower than B by 20.0 % [20.0, 20.0]"
    assert acceptance_sentence(whole, "B", "A") == (
        "A accepts 0.20 tokens per step fewer than B [0.20, 0.20]"
    )
    assert (whole.is_faster, whole.accepts_more) == ("less", "less")


def test_each_is_held_against_its_own_baseline() -> None:
    """The second was measured on a day when everything took twice as long."""
    tpots = [0.04, 0.05, 0.06, 0.05]
    slow_day = [2 * tpot for tpot in tpots]
    (whole, *_) = paired_differences(
        arm("a", tpots, [5, 6, 5, 6]), arm("b", slow_day, [5, 6, 5, 6], baseline_s=0.2), FEW
    )
    assert whole.speedup_ratio is not None
    assert whole.speedup_ratio.value == pytest.approx(1.0)


def test_pairing_by_prompt_sees_what_prompts_hide() -> None:
    """Prompts differ by a factor of 3, drafters by 2 % on each: unpaired, nothing would show."""
    random = np.random.default_rng(1)
    tpots = random.uniform(0.03, 0.09, 60)
    faster = tpots / 1.02 * random.normal(1, 0.01, 60)
    whole, *_ = paired_differences(
        arm("a", list(tpots), [5] * 60), arm("b", list(faster), [5] * 60), FEW
    )
    assert whole.is_faster == "more"
    assert whole.speedup_ratio is not None
    assert whole.speedup_ratio.relative_half_width is not None
    assert whole.speedup_ratio.relative_half_width < 0.005


def test_as_many_more_prompts_as_it_says_tell_them_apart() -> None:
    random = np.random.default_rng(2)

    def measure(num: int) -> tuple[Interval, str]:
        tpots = random.uniform(0.03, 0.09, num)
        faster = tpots / 1.02 * random.normal(1, 0.12, num)
        whole, *_ = paired_differences(
            arm("a", list(tpots), [5] * num), arm("b", list(faster), [5] * num), FEW
        )
        assert whole.speedup_ratio is not None
        return whole.speedup_ratio, speed_sentence(whole, "A", "B")

    few, said = measure(40)
    more = prompts_needed(few, 1.0, 40)
    assert more is not None
    assert "cannot be told apart at this precision" in said
    assert said.endswith("more prompts would")
    many, _ = measure(40 + 2 * more)  # at the number itself, every second interval is off
    assert many.low is not None
    assert many.low > 1


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Interval(value=1.04, low=1.02, high=1.06), 0),
        (Interval(value=1.02, low=0.98, high=1.06), 300),  # twice as near needs four times as many
        (Interval(value=0.98, low=0.94, high=1.02), 300),
        (Interval(value=1.0, low=0.9, high=1.1), None),
        (Interval(value=1.1), None),
    ],
)
def test_how_many_more_prompts(interval: Interval, expected: int | None) -> None:
    found = prompts_needed(interval, 1.0, 100)
    assert found == (pytest.approx(expected, abs=1) if expected else expected)


def test_categories_follow_and_only_common_prompts_count() -> None:
    first = arm("a", [0.04] * 6, [5] * 6)
    second = arm("b", [0.04] * 5, [5] * 5)
    found = paired_differences(first, second, FEW)
    assert [(d.category, d.num_prompts) for d in found] == [(ALL, 5), ("a", 3), ("b", 2)]
    elsewhere = second._replace(
        prompts=tuple(p._replace(prompt_id=f"other {p.prompt_id}") for p in second.prompts)
    )
    with pytest.raises(MeasurementError, match="both a and b answered"):
        paired_differences(first, elsewhere, FEW)


def test_replayed_drafters_differ_in_acceptance_alone() -> None:
    rows = [answer_row([3, 3, 3, 3, 5, 3, 3, 3], name=f"p{i}") for i in range(3)]
    replayed = replay_answers(rows)
    whole, *_ = paired_differences(replay_arm(replayed, 3), replay_arm(replayed, 3), FEW)
    assert whole.speedup_ratio is None
    assert "nothing was timed" in speed_sentence(whole, "A", "B")
    assert whole.acceptance_difference == Interval(value=0.0, low=0.0, high=0.0)
    assert "equal on these prompts" in acceptance_sentence(whole, "A", "B")


def test_an_arm_that_was_not_measured_is_refused() -> None:
    with pytest.raises(MeasurementError, match="K = 5"):
        bench_arm(make_result(CELLS), "a", 5, 1)


def test_unlike_conditions_are_named_with_both_values() -> None:
    conditions = bench_conditions(make_result(CELLS))
    assert unlike([conditions, conditions]) == ()
    (found,) = unlike([conditions, {**conditions, "dtype": "bfloat16"}])
    assert (found.what, found.values[1]) == ("dtype", "bfloat16")
