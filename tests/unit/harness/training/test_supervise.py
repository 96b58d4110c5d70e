import os
import signal
from pathlib import Path
from typing import Self

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter

from harness.errors import CheckError
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.training import supervise as module
from harness.training.messages import Ended, Message, Saved, Step
from harness.training.recorder import Recorder

from .conftest import MakePlan


class FakeWorker:
    """A child that has said all before it is asked."""

    pid = os.getpid()

    def __init__(self, *said: Message) -> None:
        self.lines = [message.model_dump_json().encode() for message in said]
        self.is_gone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.is_gone = True

    def read_lines(self, _: float) -> list[bytes] | None:
        lines, self.lines = self.lines, []
        return lines or None


class HangingWorker(FakeWorker):
    """A child that does not end after its last word; waiting for it, somebody may lose patience."""

    def __init__(self, *said: Message, is_interrupted: bool) -> None:
        super().__init__(*said)
        self.is_interrupted, self.is_killed = is_interrupted, False

    def wait(self, _: float) -> int | None:
        if self.is_interrupted:
            signal.raise_signal(signal.SIGINT)
        return -9 if self.is_killed else None

    def kill(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_child_that_hangs_after_its_last_word_is_ended(
    store: MemoryStore,
    make_plan: MakePlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_interrupted: bool,
) -> None:
    worker = HangingWorker(Ended(outcome="finished", step=7), is_interrupted=is_interrupted)
    monkeypatch.setattr(module, "WorkerProcess", lambda *_: worker)
    if not is_interrupted:
        monkeypatch.setattr(module, "_STOP_TIMEOUT_S", 0.0)
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    recorder = Recorder(run, store, make_plan(), lambda *_: None, attempt=1)
    outcome = module.supervise(tmp_path / "job.json", recorder, {}).outcome
    assert outcome.status is (RunStatus.KILLED if is_interrupted else RunStatus.FAILED)
    assert ("did not end" in str(outcome.reason)) is not is_interrupted
    assert worker.is_gone


class AskedWorker(FakeWorker):
    """A child that trains while two signals come at once, and ends when it is told anything."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def read_lines(self, _: float) -> list[bytes] | None:
        if self.told:
            return None
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        return []

    def interrupt(self) -> None:
        self.told.append("save and stop")

    def kill(self) -> None:
        self.told.append("end")

    def wait(self, _: float) -> int | None:
        return 130


def test_a_child_whose_launcher_died_is_asked_to_save_though_that_is_heard_twice(
    store: MemoryStore, make_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = AskedWorker()
    monkeypatch.setattr(module, "WorkerProcess", lambda *_: worker)
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    recorder = Recorder(run, store, make_plan(), lambda *_: None, attempt=1)
    outcome = module.supervise(tmp_path / "job.json", recorder, {}).outcome
    assert worker.told == ["save and stop"]
    assert outcome.status is RunStatus.KILLED


def test_the_curve_up_to_a_checkpoint_that_is_refused_is_in_the_store(
    store: MemoryStore, make_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {"loss": 4.0}
    unsound = write_tiny_drafter(tmp_path / "0", eagle_aux_hidden_state_layer_ids=[5, 4, 2])
    worker = FakeWorker(
        Step(step=0, epoch=0, lr=1e-3, metrics=metrics, step_s=0.5, num_tokens=100),
        Saved(epoch=0, step=1, path=unsound, metrics=metrics),
    )
    monkeypatch.setattr(module, "WorkerProcess", lambda *_: worker)
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    recorder = Recorder(run, store, make_plan(), lambda *_: None, attempt=1)
    with pytest.raises(CheckError):
        module.supervise(tmp_path / "job.json", recorder, {})
    assert worker.is_gone
    assert store.get_run(run.run_id).metrics[names.METRIC_TRAIN_LOSS] == 4.0
