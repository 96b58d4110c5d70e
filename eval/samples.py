"""From answers to samples: one row a prompt and arm, the unit of every figure and interval."""

from collections.abc import Iterable, Mapping, Sequence

from eval.answers import Answer
from eval.cells import Cell
from eval.counters import count_answers
from eval.result import BASELINE, Divergence, Lossless, PromptSample

Turns = Mapping[tuple[str, int], Answer]
"""Answers by prompt id and turn."""


def build_samples(cells: Iterable[Cell], expected: Turns) -> tuple[PromptSample, ...]:
    """One sample for each prompt of each cell.

    Args:
        cells: What was measured.
        expected: The baseline's answers, for the comparison of token ids.
    """
    samples: list[PromptSample] = []
    for cell in cells:
        by_prompt: dict[str, list[Answer]] = {}
        for answer in cell.answers:
            by_prompt.setdefault(answer.prompt_id, []).append(answer)
        samples += [_build(cell, answers, expected) for answers in by_prompt.values()]
    return tuple(samples)


def index_turns(cells: Iterable[Cell]) -> dict[tuple[str, int], Answer]:
    """The baseline's answers; of several passes the first."""
    turns: dict[tuple[str, int], Answer] = {}
    for cell in cells:
        if cell.key.arm == BASELINE:
            for answer in cell.answers:
                turns.setdefault((answer.prompt_id, answer.turn), answer)
    return turns


def compare_answers(answers: Iterable[Answer], expected: Turns) -> Lossless | None:
    """Token ids against the baseline's; None when the server sent none.

    Turns after a divergence of the same conversation had another context and are not compared.
    """
    divergences: list[Divergence] = []
    diverged: set[str] = set()
    num_compared = 0
    for answer in sorted(answers, key=lambda item: (item.prompt_id, item.turn)):
        other = expected.get((answer.prompt_id, answer.turn))
        if other is None or not answer.token_ids or answer.prompt_id in diverged:
            continue
        num_compared += 1
        if answer.token_ids != other.token_ids:
            diverged.add(answer.prompt_id)
            divergences.append(_first_difference(answer, other))
    if not num_compared:
        return None
    return Lossless(
        num_compared=num_compared,
        num_equal=num_compared - len(divergences),
        divergences=tuple(divergences),
    )


def pair_samples(
    baseline: Sequence[PromptSample], arm: Sequence[PromptSample]
) -> list[tuple[PromptSample, PromptSample]]:
    """Baseline and arm by prompt, in the arm's order; several baseline passes are added up.

    Only prompts whose answers have tokens after the first in both arms are kept: there is no time
    per output token of the others.
    """
    by_prompt: dict[str, PromptSample] = {}
    for sample in baseline:
        held = by_prompt.get(sample.prompt_id)
        by_prompt[sample.prompt_id] = _add(held, sample) if held else sample
    pairs = [(by_prompt[s.prompt_id], s) for s in arm if s.prompt_id in by_prompt]
    return [(b, s) for b, s in pairs if b.num_decode_tokens > 0 and s.num_decode_tokens > 0]


def _add(one: PromptSample, other: PromptSample) -> PromptSample:
    sums = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("num_turns", "num_tokens", "num_decode_tokens")
    }
    times = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("decode_s", "ttft_s", "latency_s")
    }
    return one.model_copy(update={**sums, **times})


def _build(cell: Cell, answers: Sequence[Answer], expected: Turns) -> PromptSample:
    key = cell.key
    is_baseline = key.arm == BASELINE
    lossless = None if is_baseline else compare_answers(answers, expected)
    has_counts = any(answer.speculation for answer in answers)
    return PromptSample(
        arm=key.arm,
        k=key.k,
        concurrency=key.concurrency,
        session=key.session,
        prompt_id=answers[0].prompt_id,
        category=answers[0].category,
        num_turns=len(answers),
        num_prompt_tokens=sum(answer.num_prompt_tokens for answer in answers),
        num_tokens=sum(answer.num_tokens for answer in answers),
        num_decode_tokens=sum(max(a.num_tokens - a.num_first_tokens, 0) for a in answers),
        decode_s=sum(a.latency_s - a.ttft_s for a in answers if a.ttft_s is not None),
        ttft_s=sum(a.ttft_s for a in answers if a.ttft_s is not None),
        latency_s=sum(answer.latency_s for answer in answers),
        acceptance=count_answers(answers).acceptance if has_counts else None,
        is_equal=None if lossless is None else not lossless.divergences,
    )


def _first_difference(answer: Answer, other: Answer) -> Divergence:
    pairs = zip(answer.token_ids, other.token_ids, strict=False)
    shorter = min(len(answer.token_ids), len(other.token_ids))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)

    def token_at(item: Answer) -> int | None:
        return item.token_ids[position] if position < len(item.token_ids) else None

    return Divergence(
        prompt_id=answer.prompt_id,
        turn=answer.turn,
        position=position,
        expected=token_at(other),
        found=token_at(answer),
    )
