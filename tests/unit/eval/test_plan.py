from eval.plan import Arm, in_turns, split_blocks
from eval.spec import Prompt

ARMS = (Arm(name="baseline"), Arm(name="a", k=3), Arm(name="b", k=3))


def test_every_second_block_runs_backwards() -> None:
    order = ["".join(arm.name[-1] for arm in arms) for _, arms in in_turns(ARMS, 3)]
    assert order == ["eab", "bae", "eab"]


def test_a_steady_drift_cancels_out_over_two_blocks() -> None:
    times = {arm.name: 0 for arm in ARMS}
    clock = 0
    for _, arms in in_turns(ARMS, 2):
        for arm in arms:
            times[arm.name] += clock
            clock += 1
    assert len(set(times.values())) == 1


def test_blocks_hold_all_prompts_and_no_small_rest() -> None:
    prompts = [Prompt(id=str(i), category="c", turns=("x",)) for i in range(19)]
    assert [len(block) for block in split_blocks(prompts, 8)] == [8, 11]
    assert [len(block) for block in split_blocks(prompts, 7)] == [7, 7, 5]
    assert [len(block) for block in split_blocks(prompts[:3], 8)] == [3]
    assert sum(split_blocks(prompts, 8), ()) == tuple(prompts)
