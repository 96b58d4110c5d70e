"""Whether speculation left the text alone: greedy answers against the verifier's own.

In exact arithmetic they are equal. In floating point a near tie between two tokens may fall either
way; a difference elsewhere means that the drafter or the engine is broken.
"""

import json
import operator
from collections.abc import Iterable
from typing import Any

from eval.cells import ArmKey, Cell
from eval.engine import Engine
from eval.errors import MeasurementError
from eval.plan import BASELINE_ARM
from eval.result import BASELINE, Divergence, Lossless
from eval.samples import Turns, compare_answers, index_turns
from eval.spec import BenchSpec

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
    """Asks the baseline for the first tokens' logprobs, its own answer up to there given."""
    checked, rest = found.divergences[:_MOST_CHECKED], found.divergences[_MOST_CHECKED:]
    openings = [_opening(divergence, expected) for divergence in checked]
    asked = {each: ids for each, ids in zip(checked, openings, strict=True) if ids}
    if not asked:
        return found
    server = baseline.serve(BASELINE_ARM)
    body = {
        "model": server.model,
        "prompt": list(asked.values()),
        "temperature": 0.0,
        "max_tokens": 1,
        "logprobs": _NUM_ALTERNATIVES,
        "return_tokens_as_token_ids": True,
    }
    text = server.fetch("/v1/completions", body, spec.request_timeout_s)
    choices = sorted(json.loads(text)["choices"], key=operator.itemgetter("index"))
    gaps = {each: read_gap(choice, each) for each, choice in zip(asked, choices, strict=True)}
    judged = (_judged(each, gaps.get(each), spec.tie_gap) for each in checked)
    return found.model_copy(update={"divergences": (*judged, *rest)})


def _opening(divergence: Divergence, expected: Turns) -> list[int]:
    """The prompt and the baseline's answer before the divergence; empty where unknown."""
    answer = expected[divergence.prompt_id, divergence.turn]
    prompt = answer.prompt_token_ids
    return [*prompt, *answer.token_ids[: divergence.position]] if prompt else []


def _judged(divergence: Divergence, gap: float | None, tie_gap: float) -> Divergence:
    is_near = gap is not None and gap <= tie_gap
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
