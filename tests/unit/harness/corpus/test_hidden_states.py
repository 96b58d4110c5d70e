import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.corpus.hidden_states import ExtractConfig, estimate_bytes, plan_batches


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000))
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


def test_bytes_are_estimated_from_layers_and_dtype() -> None:
    assert estimate_bytes([100], 4, 576, "float32") == 100 * (4 * 576 * 4 + 8) + 256
    assert estimate_bytes([100], 4, 576, "bfloat16") == 100 * (4 * 576 * 2 + 8) + 256


def test_a_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        ExtractConfig.model_validate({"dtype": "int8"})
