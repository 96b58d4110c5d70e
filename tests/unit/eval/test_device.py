import pytest

from eval.device import near_tie_gap, served_dtype


@pytest.mark.parametrize(
    ("asked", "named", "stored", "served"),
    [
        ("half", "float32", "F32", "float16"),
        ("float32", "bfloat16", "BF16", "float32"),
        ("auto", "float32", "F32", "bfloat16"),
        ("auto", "float16", "F32", "float16"),
        (None, "bfloat16", None, "bfloat16"),
        ("auto", None, "F16", "float16"),
        ("auto", None, "F64", "bfloat16"),
    ],
)
def test_auto_is_what_vllm_makes_of_config_or_weights(
    asked: str | None, named: str | None, stored: str | None, served: str
) -> None:
    assert served_dtype(asked, named=named, stored=stored) == served


def test_a_gap_that_bfloat16_cannot_tell_from_none_is_a_near_tie_there_alone() -> None:
    step_of_a_logit_near_20 = 2**4 * 2**-7
    assert near_tie_gap("bfloat16") >= 2 * step_of_a_logit_near_20
    for finer in ("float32", "float16"):
        assert near_tie_gap(finer) < step_of_a_logit_near_20
