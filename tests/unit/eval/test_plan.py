import pytest

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


def test_blocks_hold_all_prompts_and_are_an_even_number_of_like_ones() -> None:
    prompts = [Prompt(id=str(i), category="c", turns=("x",)) for i in range(19)]
    assert [len(block) for block in split_blocks(prompts, 8)] == [10, 9]
    assert [len(block) for block in split_blocks(prompts, 5)] == [5, 5, 4, 5]
    assert [len(block) for block in split_blocks(prompts[:3], 8)] == [3]
    assert [len(block) for block in split_blocks(prompts[:8], 8, concurrency=8)] == [8]
    assert sum(split_blocks(prompts, 8), ()) == tuple(prompts)


@pytest.mark.parametrize("total", range(1, 60))
@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_every_block_keeps_all_streams_busy(total: int, concurrency: int) -> None:
    prompts = [Prompt(id=str(i), category="c", turns=("x",)) for i in range(total)]
    blocks = split_blocks(prompts, 12, concurrency)
    assert min(len(block) for block in blocks) >= min(concurrency, total)
    assert len(blocks) % 2 == 0 or total < (len(blocks) + 1) * max(concurrency, 2)
