from collections.abc import Sequence

import numpy as np
import pytest
from fakes.replays import KNOWN, answer_row, exact_parts, one_token_drafter

from eval.agreement import check_agreement, compare
from eval.errors import SpecError
from eval.judging import JudgedRow


def judged(
    right: list[int], total: list[int], drafted: Sequence[int] = (), said: Sequence[int] = ()
) -> JudgedRow:
    return JudgedRow(
        row=answer_row([KNOWN]),
        served=np.zeros(1, dtype=np.int64),
        right=np.array(right),
        total=np.array(total),
        num_checked=0,
        num_greedy=0,
        drafted=np.array(drafted, dtype=np.int64),
        said=np.array(said, dtype=np.int64),
    )


def test_equal_figures_agree_and_others_are_named() -> None:
    rows = [answer_row([KNOWN] * 50) for _ in range(20)]
    same = check_agreement(one_token_drafter(), exact_parts(), rows, [1.0, 0.98])
    assert same.agrees
    other = check_agreement(one_token_drafter(), exact_parts(), rows, [1.0, 0.9])
    assert not other.agrees
    assert other.worst.step == 1
    assert other.describe() == (
        "step 1: trained 0.9000, replayed from the file 0.9800, tolerance 0.0067 (1,000 positions)"
    )
    assert other.suspects().startswith("the first step agrees: look at norm_output first")
    assert (
        check_agreement(one_token_drafter(), exact_parts(), rows, [0.5])
        .suspects()
        .startswith("compare")
    )


@pytest.mark.parametrize(
    ("total", "dtype", "tolerance"),
    [
        (1_000_000, "float32", 0.004),
        (1000, "float32", 4 * (0.002 / 1000) ** 0.5 + 0.001),
        (1000, "bfloat16", 4 * (0.01 / 1000) ** 0.5 + 0.001),
    ],
)
def test_the_tolerance_falls_with_positions_down_to_a_floor(
    total: int, dtype: str, tolerance: float
) -> None:
    (step,) = compare([judged([0], [total])], [0.0], dtype=dtype).steps
    assert step.tolerance == pytest.approx(tolerance, abs=2e-6)


def test_a_drafter_that_says_one_token_all_the_time_is_not_judged() -> None:
    mixed, same = range(1000), [7] * 210 + list(range(1000, 1790))
    unlearned = compare([judged([12], [1000], same, mixed)], [0.03])
    assert unlearned.agrees
    assert unlearned.describe().endswith(
        "; not judged: the drafter says one token at 21% of the positions"
    )
    assert not unlearned.steps[0].agrees
    # The trainer found it right at more: the file is another.
    assert compare([judged([12], [1000], same, mixed)], [0.2]).agrees
    assert not compare([judged([12], [1000], same, mixed)], [0.21]).agrees
    # The verifier says it half as often or more; or the drafter says it at a fifth.
    often = [7] * 105 + list(range(1000, 1895))
    assert not compare([judged([12], [1000], same, often)], [0.03]).agrees
    fifth = [7] * 200 + list(range(1000, 1800))
    assert not compare([judged([12], [1000], fifth, mixed)], [0.03]).agrees
    # Right at a quarter is little where the verifier says one token at 15 %.
    much, often = ([7] * number + list(range(1000, 2000 - number)) for number in (400, 150))
    assert not compare([judged([12], [1000], much, often)], [0.25]).is_judged


def test_a_sample_of_the_rows_is_given_its_standard_error() -> None:
    rows = [judged([right], [10]) for right in (2, 4, 6, 8)]
    (whole,) = compare(rows, [0.5]).steps
    (half,) = compare(rows, [0.5], share_replayed=0.5).steps
    # Residuals -3, -1, 1, 3: variance 20 / 3, over 4 rows of 10 positions, half of them unseen.
    expected = 4 * (0.5 * (20 / 3) / 4) ** 0.5 / 10
    assert half.tolerance - whole.tolerance == pytest.approx(expected)


def test_nothing_to_compare_is_no_agreement() -> None:
    with pytest.raises(SpecError, match="found 0 rows"):
        compare([], [0.5])
    with pytest.raises(SpecError, match="0 accuracies"):
        compare([judged([], [])], [])
