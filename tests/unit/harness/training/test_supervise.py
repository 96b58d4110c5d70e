import os
from pathlib import Path
from typing import Self

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter

from harness.errors import CheckError
from harness.tracking import names
from harness.training import supervise as module
from harness.training.messages import Message, Saved, Step
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
