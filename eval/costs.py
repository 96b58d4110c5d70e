"""What a step costs, why a speedup is what it is, and what another acceptance length would bring.

Source: TPOT = step time / tokens per step, hence speedup = tokens per step / step cost, the latter
in steps of the verifier alone.
"""

import statistics
from collections.abc import Sequence

from eval.records import CeilingPoint, StepCost
from eval.result import ALL, BenchRow
from eval.spec import BenchSpec

_ROUNDING_MS = 1e-6


def explain(length: float, cost: float, speedup: float) -> str:
    """Why the speedup is what it is: tokens per step against what a step costs.

    Source: TPOT = step time / tokens per step, hence speedup = tokens per step / step cost.
    """
    return (
        f"{length:.2f} tokens a step, a step costs {cost:.2f}x a plain one -> {speedup:.2f}x; "
        f"break-even at an acceptance length of {cost:.2f}"
    )


def fit_step_costs(rows: Sequence[BenchRow]) -> tuple[StepCost, ...]:
    """Step times of each pooled arm, and the straight line over K through them (least squares).

    With a single K all that a step costs beyond a plain one is put down to the proposed tokens. A
    line with a negative part is none: no step and no token takes less than no time.
    """
    arms: dict[tuple[str, int], list[BenchRow]] = {}
    for row in rows:
        if row.category == ALL and row.tokens_per_step:
            arms.setdefault((row.drafter, row.concurrency), []).append(row)
    found: list[StepCost] = []
    for (drafter, concurrency), own in arms.items():
        steps = {r.k: r.tpot_ms.value * r.tokens_per_step.value for r in own if r.tokens_per_step}
        plain = statistics.fmean(row.baseline_tpot_ms.value for row in own)
        if len(steps) > 1:
            slope, intercept = statistics.linear_regression(list(steps), list(steps.values()))
        else:
            ((k, step),) = steps.items()
            slope, intercept = (step - plain) / k, plain
        is_possible = intercept > 0 and slope > -_ROUNDING_MS
        found.append(
            StepCost(
                drafter=drafter,
                concurrency=concurrency,
                plain_step_ms=plain,
                step_ms=steps,
                fixed_ms=intercept if is_possible else None,
                per_token_ms=max(slope, 0.0) if is_possible else None,
            )
        )
    return tuple(found)


def draw_ceilings(spec: BenchSpec, rows: Sequence[BenchRow]) -> tuple[CeilingPoint, ...]:
    """Speed by acceptance length, for every arm whose step was measured: length / step cost."""
    synthetic = {proposer.name for proposer in spec.proposers if proposer.is_synthetic}
    points: list[CeilingPoint] = []
    for row in rows:
        if row.category != ALL or row.step_cost is None or not spec.ceiling:
            continue
        is_measured = row.drafter in synthetic
        lengths = [length for length in spec.ceiling if length <= row.k + 1]
        if is_measured and row.acceptance_length_emitted:
            lengths = [row.acceptance_length_emitted.value]
        points += [
            CeilingPoint(
                drafter=row.drafter,
                k=row.k,
                concurrency=row.concurrency,
                acceptance_length=length,
                decode_speedup=length / row.step_cost,
                is_measured=is_measured,
            )
            for length in lengths
        ]
    return tuple(points)
