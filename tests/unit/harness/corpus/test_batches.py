from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.corpus.batches import Budget, Schedule, plan_batches
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.storage import estimate_bytes

Lengths = st.lists(st.integers(1, 300), max_size=60)


def walk(
    lengths: list[int], first: Sequence[Budget], fits: Callable[[int], bool] = lambda _: True
) -> tuple[list[tuple[int, ...]], list[Budget]]:
    """The passes that fit, by the schedule; those that do not halve the budget."""
    budgets, done = [*first], []
    schedule = Schedule(lengths, budgets)
    for number, batch in schedule:
        taken = lengths[batch.rows[0]] * len(batch.rows)
        lower = None if fits(taken) else schedule.halve(number, batch)
        if lower is None:
            done.append(batch.rows)
        else:
            budgets.append(lower)
    return done, budgets


@given(Lengths, st.integers(1, 1000))
def test_batches_hold_every_row_once_and_keep_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan_batches(lengths, budget)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[row] for row in batch.rows)
        assert len(batch.rows) * longest <= budget or len(batch.rows) == 1
        assert batch.num_tokens == sum(lengths[row] for row in batch.rows)


def test_batches_are_longest_first_and_the_same_every_time() -> None:
    lengths = [5, 9, 5, 7, 9]
    assert [batch.rows for batch in plan_batches(lengths, 18)] == [(1, 4), (3, 0), (2,)]


@given(Lengths, st.integers(1, 1000), st.integers(1, 500))
def test_memory_that_ends_costs_no_row_and_a_second_call_makes_the_same_passes(
    lengths: list[int], budget: int, limit: int
) -> None:
    first = [Budget(first_batch=0, tokens=budget)]
    done, budgets = walk(lengths, first, lambda taken: taken <= limit)
    assert sorted(row for rows in done for row in rows) == list(range(len(lengths)))
    assert all(lengths[rows[0]] * len(rows) <= max(limit, lengths[rows[0]]) for rows in done)
    again, _ = walk(lengths, budgets)
    assert len(budgets) > 2 or again == done


def test_the_budget_is_halved_from_the_batch_on_that_did_not_fit() -> None:
    lengths = [100, 100, 10, 10, 10, 10]
    done, budgets = walk(lengths, [Budget(first_batch=0, tokens=200)], lambda taken: taken < 200)
    assert done == [(0,), (1,), (2, 3, 4, 5)]
    assert [budget.tokens for budget in budgets] == [200, 100]


def test_bytes_are_estimated_from_layers_and_dtype() -> None:
    assert estimate_bytes([100], 4, 576, "float32") == 100 * (4 * 576 * 4 + 8) + 256
    assert estimate_bytes([100], 4, 576, "bfloat16") == 100 * (4 * 576 * 2 + 8) + 256
    assert estimate_bytes([100], 4, 576, "fp8") == 100 * (4 * 576 + 4 + 8) + 256


def test_the_estimate_of_kimi_is_what_its_campaign_took() -> None:
    """27 GiB for 503,000 tokens of three layers and the last, 7,168 wide, in bfloat16."""
    found = estimate_bytes([503] * 1000, 4, 7168, "bfloat16")
    assert found / 2**30 == pytest.approx(27, rel=0.01)


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        ExtractConfig.model_validate({"dtype": "int8"})
