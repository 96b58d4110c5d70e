from eval.device import near_tie_gap


def test_a_gap_that_bfloat16_cannot_tell_from_none_is_a_near_tie_there_alone() -> None:
    step_of_a_logit_near_20 = 2**4 * 2**-7
    assert near_tie_gap("bfloat16") >= 2 * step_of_a_logit_near_20
    for finer in ("float32", "float16", None):
        assert near_tie_gap(finer) < step_of_a_logit_near_20
