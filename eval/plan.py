"""The order of a measurement: which engines run together, and whose turn it is in each block."""

from collections.abc import Iterator, Sequence
from typing import Any

from eval.result import BASELINE
from eval.spec import BenchSpec, DrafterSpec, Frozen, Prompt


class Arm(Frozen):
    """One thing to be measured: the verifier alone, or with something that proposes at a K."""

    name: str
    k: int | None = None
    drafter: DrafterSpec | None = None
    speculative_config: dict[str, Any] | None = None
    is_synthetic: bool = False


class Session(Frozen):
    """One engine with speculation and the arms that it hosts, drafters being changed in place."""

    name: str
    arms: tuple[Arm, ...]


BASELINE_ARM = Arm(name=BASELINE)


def build_arms(spec: BenchSpec, k: int) -> tuple[Arm, ...]:
    """Every drafter and proposer at one K."""
    drafters = [
        Arm(
            name=drafter.name,
            k=k,
            drafter=drafter,
            speculative_config={
                "method": "eagle3",
                "model": str(drafter.path),
                "num_speculative_tokens": k,
                "rejection_sample_method": "standard",
                **spec.server.speculative_config,
            },
        )
        for drafter in spec.drafters
    ]
    others = [
        Arm(
            name=proposer.name,
            k=k,
            speculative_config={**proposer.speculative_config, "num_speculative_tokens": k},
            is_synthetic=proposer.is_synthetic,
        )
        for proposer in spec.proposers
        if proposer.speculative_config.get("synthetic_acceptance_length", 1) <= k + 1
    ]
    return (*drafters, *others)


def split_blocks(
    prompts: Sequence[Prompt], size: int, concurrency: int = 1
) -> list[tuple[Prompt, ...]]:
    """Consecutive blocks of nearly equal length, an even number of them where that is possible.

    Over an even number the orders A B and B A are equally frequent, so a steady drift cancels out.

    Args:
        prompts: To be split.
        size: Prompts in a block, about; at least twice the concurrency is taken.
        concurrency: Requests under way at once; a block has enough prompts for all of them.
    """
    total = len(prompts)
    count = max(round(total / max(size, 2 * concurrency)), 1)
    if count % 2 and total >= (count + 1) * max(concurrency, 2):
        count += 1
    ends = [round(total * (index + 1) / count) for index in range(count)]
    return [tuple(prompts[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def in_turns(arms: Sequence[Arm], num_blocks: int) -> Iterator[tuple[int, tuple[Arm, ...]]]:
    """Block index and arms in their order: A B, then B A, so that a steady drift cancels out."""
    for block in range(num_blocks):
        yield block, tuple(arms if block % 2 == 0 else reversed(arms))
