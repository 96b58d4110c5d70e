"""Whether speculation left the text alone: greedy answers against the verifier's own.

In exact arithmetic they are equal. In floating point a near tie between two tokens may fall either
way; a difference elsewhere means that the drafter or the engine is broken.
"""

import json
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from eval.cells import ArmKey, Cell
from eval.errors import MeasurementError
from eval.result import BASELINE, Divergence, Lossless
from eval.samples import Turns, compare_answers, index_turns
from eval.server import VllmServer
from eval.spec import BenchSpec

_AT_ONCE = 32
"""Questions in one request."""
_NUM_ALTERNATIVES = 8
_ROUNDING = 1e-5
"""Of a difference of two log-probabilities in float32: two steps of bfloat16 came as 0.25000006."""


def judge_divergences(
    cells: Iterable[Cell], serve_baseline: Callable[[], VllmServer], spec: BenchSpec
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
            judged = _judge(found.divergences, serve_baseline, spec, expected)
            verdicts[key] = found.model_copy(update={"divergences": judged})
    return verdicts


def _judge(
    divergences: Sequence[Divergence],
    serve_baseline: Callable[[], VllmServer],
    spec: BenchSpec,
    expected: Turns,
) -> tuple[Divergence, ...]:
    """With what the baseline thinks of both tokens, its own answer up to there given."""
    openings = {each: _opening(each, expected) for each in divergences}
    asked = [(each, opening) for each, opening in openings.items() if opening]
    gaps: dict[Divergence, float | None] = {}
    for first in range(0, len(asked), _AT_ONCE):
        some = asked[first : first + _AT_ONCE]
        server = serve_baseline()
        body = {
            "model": server.model,
            "prompt": [opening for _, opening in some],
            "temperature": 0.0,
            "max_tokens": 1,
            "logprobs": _NUM_ALTERNATIVES,
            "return_tokens_as_token_ids": True,
        }
        text = server.fetch("/v1/completions", body, spec.request_timeout_s)
        choices = sorted(json.loads(text)["choices"], key=operator.itemgetter("index"))
        gaps |= {e: read_gap(choice, e) for (e, _), choice in zip(some, choices, strict=True)}
    return tuple(_judged(each, gaps.get(each), spec.tie_gap) for each in divergences)


def _opening(divergence: Divergence, expected: Turns) -> list[int]:
    """The prompt and the baseline's answer before the divergence; empty where unknown."""
    answer = expected[divergence.prompt_id, divergence.turn]
    prompt = answer.prompt_token_ids
    return [*prompt, *answer.token_ids[: divergence.position]] if prompt else []


def _judged(divergence: Divergence, gap: float | None, tie_gap: float) -> Divergence:
    is_near = gap is not None and gap <= tie_gap + _ROUNDING
    return divergence.model_copy(update={"gap": gap, "is_near_tie": is_near})


def read_gap(choice: dict[str, Any], divergence: Divergence) -> float | None:
    """Nats between the two tokens of a divergence, to the baseline.

    Args:
        choice: Of a completion of one token; `logprobs.top_logprobs` by token as `token_id:N`.
        divergence: Which tokens.

    Returns:
        A number of at least 0, or None when one of the tokens is not among the alternatives.
    """
    steps = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
    one = steps[0].get(f"token_id:{divergence.expected}")
    other = steps[0].get(f"token_id:{divergence.found}")
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
