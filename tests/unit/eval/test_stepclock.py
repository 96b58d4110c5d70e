"""The clock on a runner that is written down here; a real one is in the integration tests."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eval import stepclock
from eval.stepclock import AFTER, DRAFT, SAMPLE, STEP, VERIFY, StepClock


class Runner:
    """Runner V1's methods; each takes its own milliseconds of a clock that stands still."""

    def __init__(self, now: list[float]) -> None:
        self.now = now
        self.device = torch.device("cpu")
        self.num_spec_tokens = 3
        self.drafter = object()

    def execute_model(self, scheduled: Any) -> str:
        self.now[0] += 0.001
        return self._model_forward()

    def _model_forward(self) -> str:
        self.now[0] += 0.010
        return "logits"

    def sample_tokens(self) -> None:
        self._sample()
        self.propose_draft_token_ids()

    def _sample(self) -> None:
        self.now[0] += 0.002

    def propose_draft_token_ids(self) -> None:
        self.now[0] += 0.005


class Worker(StepClock):
    def __init__(self, runner: Runner) -> None:
        self.model_runner = runner


def scheduled(*tokens: int, is_new: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        num_scheduled_tokens={str(i): n for i, n in enumerate(tokens)},
        total_num_scheduled_tokens=sum(tokens),
        scheduled_new_reqs=["r"] if is_new else [],
    )


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    held = [0.0]
    monkeypatch.setattr(stepclock.time, "perf_counter", lambda: held[0])
    return held


def test_parts_of_a_decoding_step_are_told_and_the_runner_is_as_before(now: list[float]) -> None:
    runner = Runner(now)
    worker = Worker(runner)
    worker.step_clock_start()
    for batch in (scheduled(9, 9, is_new=True), *[scheduled(4, 4)] * 3, scheduled(4), scheduled(4)):
        assert runner.execute_model(batch) == "logits"
        runner.sample_tokens()
        now[0] += 0.003
    found = worker.step_clock_stop()
    assert found["num_steps"] == 3
    assert found["num_requests"] == 2
    assert found["num_tokens"] == 8
    assert found["step_ms"] == pytest.approx(21)
    expected = {STEP: 11.0, VERIFY: 10.0, AFTER: 7.0, SAMPLE: 2.0, DRAFT: 5.0}
    assert found["cpu_ms"] == pytest.approx(expected)
    assert found["gpu_ms"] == {}
    assert not set(runner.__dict__) & {"execute_model", "_sample", "_model_forward"}


def test_nothing_but_prefills_is_no_decoding_step(now: list[float]) -> None:
    worker = Worker(Runner(now))
    worker.step_clock_start()
    worker.model_runner.execute_model(scheduled(9, is_new=True))
    assert worker.step_clock_stop()["num_steps"] == 0
