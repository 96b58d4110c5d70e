"""Whether speculation left the text alone: greedy answers against the verifier's own.

In exact arithmetic they are equal. In floating point a near tie between two tokens may fall either
way; a difference elsewhere means that the drafter or the engine is broken.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from eval.cells import ArmKey, Cell
from eval.engine import Engine
from eval.errors import MeasurementError
from eval.plan import BASELINE_ARM
from eval.result import BASELINE, Divergence, Lossless
from eval.samples import Turns, compare_answers, index_turns
from eval.spec import BenchSpec, Prompt

_MOST_CHECKED = 32
_NUM_ALTERNATIVES = 8


def judge_divergences(
    cells: Iterable[Cell], baseline: Engine, spec: BenchSpec
) -> dict[ArmKey, Lossless]:
    """Compares every arm with the baseline and asks the baseline how close each difference was.

    Empty when answers are sampled: there is nothing to be equal to.
    """
    if spec.sampling.temperature > 0:
        return {}
    synthetic = {proposer.name for proposer in spec.proposers if proposer.is_synthetic}
    cells = [cell for cell in cells if cell.key.arm not in synthetic]
    expected = index_turns(cells)
    by_arm: dict[ArmKey, list[Cell]] = {}
    for cell in cells:
        if cell.key.arm != BASELINE:
            key = (cell.key.arm, cell.key.k, cell.key.concurrency)
            by_arm.setdefault(key, []).append(cell)
    verdicts: dict[ArmKey, Lossless] = {}
    for key, own in by_arm.items():
        found = compare_answers([a for cell in own for a in cell.answers], expected)
        if found is not None:
            verdicts[key] = _with_gaps(found, baseline, spec, expected)
    return verdicts


def _with_gaps(found: Lossless, baseline: Engine, spec: BenchSpec, expected: Turns) -> Lossless:
    prompts = {prompt.id: prompt for prompt in spec.prompts}
    checked = [
        _with_gap(divergence, baseline, spec, prompts[divergence.prompt_id], expected)
        for divergence in found.divergences[:_MOST_CHECKED]
    ]
    rest = found.divergences[_MOST_CHECKED:]
    return found.model_copy(update={"divergences": (*checked, *rest)})


def _with_gap(
    divergence: Divergence,
    baseline: Engine,
    spec: BenchSpec,
    prompt: Prompt,
    expected: Turns,
) -> Divergence:
    messages = prompt.opening()
    for turn in range(divergence.turn + 1):
        messages.append({"role": "user", "content": prompt.turns[turn]})
        if turn < divergence.turn:
            messages.append({"role": "assistant", "content": expected[prompt.id, turn].text})
    server = baseline.serve(BASELINE_ARM)
    body = {
        "model": server.model,
        "messages": messages,
        "temperature": 0.0,
        "max_tokens": spec.sampling.max_tokens,
        "seed": spec.sampling.seed,
        "ignore_eos": spec.sampling.ignore_eos,
        "logprobs": True,
        "top_logprobs": _NUM_ALTERNATIVES,
        "return_tokens_as_token_ids": True,
    }
    text = server.fetch("/v1/chat/completions", body, spec.request_timeout_s)
    logprobs = json.loads(text)["choices"][0].get("logprobs") or {}
    gap = read_gap(logprobs.get("content") or (), divergence)
    is_near = gap is not None and gap <= spec.tie_gap
    return divergence.model_copy(update={"gap": gap, "is_near_tie": is_near})


def read_gap(steps: Sequence[dict[str, Any]], divergence: Divergence) -> float | None:
    """Nats between the two tokens at the place of a divergence, in the baseline's own answer.

    Args:
        steps: `logprobs.content` of the baseline's answer, tokens as `token_id:N`.
        divergence: Which tokens, where.

    Returns:
        A number of at least 0, or None when one of the tokens is not among the alternatives.
    """
    if divergence.position >= len(steps):
        return None
    step = steps[divergence.position]
    logprobs = {item["token"]: item["logprob"] for item in (step, *step["top_logprobs"])}
    one = logprobs.get(f"token_id:{divergence.expected}")
    other = logprobs.get(f"token_id:{divergence.found}")
    return None if one is None or other is None else abs(one - other)


def require_equal_counts(swapped: Cell, fresh: Cell) -> None:
    """Demands the same tokens and counts of a drafter changed in place and of a fresh engine.

    Raises:
        MeasurementError: They differ: the change did not do what it should.
    """
    ours = {(a.prompt_id, a.turn): (a.token_ids, a.speculation) for a in swapped.answers}
    theirs = {(a.prompt_id, a.turn): (a.token_ids, a.speculation) for a in fresh.answers}
    different = sorted(
        f"{prompt} turn {turn}"
        for prompt, turn in ours
        if ours[prompt, turn] != theirs.get((prompt, turn))
    )
    if different:
        raise MeasurementError(
            f"{swapped.key.arm} gives other counts after being changed in place than in a fresh "
            f"engine, at {len(different)} of {len(ours)} answers: {', '.join(different[:5])}",
            "measure with --no-swap",
        )
