"""Runs inside vLLM's workers: what the parts of a step take, on the CPU and on the GPU.

Given to the server as `--worker-extension-cls eval.stepclock.StepClock`. Methods of the live model
runner are wrapped while the clock runs and put back afterwards: those of runner V1
(v1/worker/gpu_model_runner.py, also a CPU's) and of V2 (v1/worker/gpu/model_runner.py), 0.26 to
0.33. GPU times are between CUDA events on the stream of the call, so they hold what was launched.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

STEP = "step"
VERIFY_GRAPH, VERIFY = "verify, one graph", "verify"
SAMPLE, DRAFT, AFTER = "sample", "draft", "after"


class _Span(NamedTuple):
    """One call; GPU events are None on a CPU."""

    phase: str
    step: int
    began_s: float
    ended_s: float
    events: tuple[Any, Any] | None


class _Step(NamedTuple):
    """What one step was for."""

    num_requests: int
    num_tokens: int
    is_decode: bool


class StepClock:
    """Becomes a base of vLLM's worker class; hence the long names."""

    def step_clock_start(self) -> None:
        """Wraps the model runner's methods."""
        worker: Any = self
        worker.step_clock = _Clock(worker.model_runner)

    def step_clock_stop(self) -> dict[str, Any]:
        """Puts the methods back.

        Returns:
            num_steps: decoding steps with as many requests as most of them had;
            num_requests: how many those were; num_tokens: in one such step;
            step_ms: from its start to the next one's; cpu_ms, gpu_ms: by part, of such a step.
        """
        worker: Any = self
        clock = worker.step_clock
        worker.step_clock = None
        return clock.stop()  # type: ignore[no-any-return]


class _Clock:
    def __init__(self, runner: Any) -> None:
        self._is_gpu = runner.device.type == "cuda"
        self._longest = 1 + (getattr(runner, "num_spec_tokens", 0) or _num_spec_tokens(runner))
        self._spans: list[_Span] = []
        self._steps: list[_Step] = []
        self._wrapped: list[tuple[Any, str, Any]] = []
        for owner, name, phase in _parts(runner):
            self._wrap(owner, name, phase)

    def stop(self) -> dict[str, Any]:
        for owner, name, own in self._wrapped:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        if self._is_gpu:
            torch.cuda.synchronize()
        return self._read()

    def _wrap(self, owner: Any, name: str, phase: str) -> None:
        held = getattr(owner, name)
        # A method of the class comes back when what hides it is taken away.
        self._wrapped.append((owner, name, owner.__dict__.get(name)))

        def timed(*args: Any, **kwargs: Any) -> Any:
            if phase == STEP:
                self._note_step(args[0] if args else kwargs["scheduler_output"])
            return self._time(phase, lambda: held(*args, **kwargs))

        object.__setattr__(owner, name, timed)

    def _note_step(self, scheduled: Any) -> None:
        tokens = scheduled.num_scheduled_tokens
        is_decode = bool(tokens) and max(tokens.values()) <= self._longest
        is_decode = is_decode and not scheduled.scheduled_new_reqs
        self._steps.append(_Step(len(tokens), scheduled.total_num_scheduled_tokens, is_decode))

    def _time(self, phase: str, call: Callable[[], Any]) -> Any:
        events = (_event(), _event()) if self._is_gpu else None
        began_s = time.perf_counter()
        if events:
            events[0].record()
        try:
            return call()
        finally:
            if events:
                events[1].record()
            ended_s = time.perf_counter()
            self._spans.append(_Span(phase, len(self._steps) - 1, began_s, ended_s, events))

    def _read(self) -> dict[str, Any]:
        chosen = self._most_common()
        cpu_ms: dict[str, float] = defaultdict(float)
        gpu_ms: dict[str, float] = defaultdict(float)
        for span in self._spans:
            if span.step in chosen:
                cpu_ms[span.phase] += 1e3 * (span.ended_s - span.began_s)
                if span.events:
                    gpu_ms[span.phase] += span.events[0].elapsed_time(span.events[1])
        starts = {span.step: span.began_s for span in self._spans if span.phase == STEP}
        lasted = [starts[i + 1] - starts[i] for i in chosen if i + 1 in starts]
        count = max(len(chosen), 1)
        steps = [self._steps[index] for index in chosen]
        return {
            "num_steps": len(chosen),
            "num_requests": steps[0].num_requests if steps else 0,
            "num_tokens": sum(step.num_tokens for step in steps) / count,
            "step_ms": 1e3 * sum(lasted) / max(len(lasted), 1),
            "cpu_ms": {phase: total / count for phase, total in cpu_ms.items()},
            "gpu_ms": {phase: total / count for phase, total in gpu_ms.items()},
        }

    def _most_common(self) -> set[int]:
        """Decoding steps with the most usual number of requests, and one such step after them."""
        by_requests: dict[int, list[int]] = defaultdict(list)
        for index, step in enumerate(self._steps):
            if step.is_decode and index + 1 < len(self._steps) and self._steps[index + 1].is_decode:
                by_requests[step.num_requests].append(index)
        largest: list[int] = max(by_requests.values(), key=len, default=[])
        return set(largest)


def _parts(runner: Any) -> Iterator[tuple[Any, str, str]]:
    """The methods to be timed: object, name, what it is called."""
    yield runner, "execute_model", STEP
    yield runner, "sample_tokens", AFTER
    if hasattr(runner, "_model_forward"):  # V1
        yield runner, "_model_forward", VERIFY
        yield runner, "_sample", SAMPLE
        if getattr(runner, "drafter", None) is not None:
            yield runner, "propose_draft_token_ids", DRAFT
        return
    yield runner.model, "forward", VERIFY
    yield runner, "sample", SAMPLE
    if runner.cudagraph_manager is not None:
        yield runner.cudagraph_manager, "run_fullgraph", VERIFY_GRAPH
    if runner.speculator is not None:
        yield runner.speculator, "propose", DRAFT


def _num_spec_tokens(runner: Any) -> int:
    config = runner.vllm_config.speculative_config
    return int(config.num_speculative_tokens) if config else 0


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)
