"""Where the time of a step goes: each engine is asked once more while a clock runs in its workers.

Kept apart from measuring: the clock itself costs time, and its prompts are in no figure.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from eval.engine import Engine
from eval.errors import MeasurementError
from eval.files import write_atomic
from eval.fleet import Fleet
from eval.hotswap import DEV_MODE
from eval.plan import BASELINE_ARM, Arm, Session, build_arms
from eval.progress import ProgressFn
from eval.server import VllmServer
from eval.spec import BenchSpec, Frozen, Prompt

PROFILE_NAME = "profile.json"
CLOCK_ARGS = ("--worker-extension-cls", "eval.stepclock.StepClock")
_TIMEOUT_S = 120.0


class StepProfile(Frozen):
    """A decoding step of one engine, on average; milliseconds."""

    arm: str
    k: int | None
    """None: the verifier alone."""
    concurrency: int
    num_steps: int
    num_requests: int
    num_tokens: float
    step_ms: float
    """From the start of a step to the next one's."""
    cpu_ms: Mapping[str, float]
    """What the worker's process spends in each part. Parts inside others are told twice: `verify`
    is in `step`, `sample` and `draft` are in `after`."""
    gpu_ms: Mapping[str, float]
    """The same on the GPU; empty on a CPU."""

    @property
    def between_ms(self) -> float:
        """Of a step outside the worker: scheduling, sending, waiting."""
        inside = self.cpu_ms.get("step", 0.0) + self.cpu_ms.get("after", 0.0)
        return max(self.step_ms - inside, 0.0)


class Profile(Frozen):
    """All of them, as kept beside the measurement."""

    steps: tuple[StepProfile, ...]


def profile_steps(spec: BenchSpec, out_dir: Path, progress: ProgressFn) -> Profile:
    """Profiles the verifier alone and with each drafter, at each K and concurrency.

    Args:
        spec: The measurement; its first prompts are asked.
        out_dir: Its folder; `profile.json` is written there.
        progress: Told how far it is.

    Raises:
        EvalError: A server fails, or no decoding step was seen.
    """
    server = spec.server.model_copy(
        update={
            "extra_args": (*spec.server.extra_args, *CLOCK_ARGS),
            "env": {**spec.server.env, **DEV_MODE},
        }
    )
    timed = spec.model_copy(update={"server": server, "acceptance_k": ()})
    arms = [BASELINE_ARM, *(arm for k in spec.k for arm in build_arms(timed, k))]
    total = len(arms) * len(spec.concurrency)
    steps: list[StepProfile] = []
    fleet = Fleet(timed, out_dir, progress)
    for index, arm in enumerate(arms):
        with ExitStack() as stack:
            stack.callback(fleet.queue.leave)
            engine = fleet.open(stack, Session(name=f"profile-{index}", arms=(arm,)))
            served = fleet.serve(engine, arm)
            for concurrency in spec.concurrency:
                progress("profiling", len(steps), total)
                steps.append(_profile(engine, served, arm, concurrency, timed.prompts))
    found = Profile(steps=tuple(steps))
    write_atomic(out_dir / PROFILE_NAME, found.model_dump_json(indent=1))
    return found


def _profile(
    engine: Engine, server: VllmServer, arm: Arm, concurrency: int, prompts: Sequence[Prompt]
) -> StepProfile:
    engine.ask(arm, prompts[:concurrency], concurrency, max_tokens=2)
    server.fetch("/collective_rpc", {"method": "step_clock_start"}, _TIMEOUT_S)
    try:
        engine.ask(arm, prompts[: max(2 * concurrency, 2)], concurrency)
    finally:
        answer = server.fetch("/collective_rpc", {"method": "step_clock_stop"}, _TIMEOUT_S)
    workers = json.loads(answer)["results"]
    found = max(workers, key=lambda worker: worker["step_ms"])
    if not found["num_steps"]:
        raise MeasurementError(
            f"expected decoding steps of {arm.name} at {concurrency} at once, found none",
            "raise max_tokens",
        )
    return StepProfile(arm=arm.name, k=arm.k, concurrency=concurrency, **found)
