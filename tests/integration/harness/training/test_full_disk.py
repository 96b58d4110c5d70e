"""A training that is stopped while the disk takes no checkpoint of it."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from speculators.train.graceful_shutdown import TrainingInterruptedError

from harness.training.folders import STATE_NAME, list_epochs
from harness.training.worker.gang import Gang
from harness.training.worker.session import train
from harness.training.worker.trainer import WatchedTrainer


class _Checkpointer:
    def __init__(self, path: Path, num_files: int) -> None:
        self.path, self._num_files = path, num_files

    def save_checkpoint(self, _model: object, _optimizers: object, epoch: int | str) -> None:
        for number in range(self._num_files):
            (self.path / str(epoch)).mkdir(exist_ok=True)
            (self.path / str(epoch) / str(number)).touch()
        raise OSError(errno.ENOSPC, "No space left on device")


class _Interrupted(WatchedTrainer):
    """Stopped at step 7, three steps after its last checkpoint."""

    def __init__(self, path: Path, num_files: int) -> None:
        self.checkpointer: Any = _Checkpointer(path, num_files)
        self.config: Any = SimpleNamespace(num_epochs=2, save_best=False, checkpoint_freq=0.5)
        self.gang = Gang()
        self.model = self.optimizers = self.schedulers = None
        self.is_distributed = self.was_interrupted = self.has_saved_interrupted = False
        self.current_epoch = self.running_epoch = self.epoch_first_step = 0
        self.global_step = 7

    def validate_unfinished(self) -> None: ...

    def train_epoch(self, epoch: int, **_: Any) -> None:
        raise TrainingInterruptedError("SIGINT")


@pytest.mark.parametrize("num_files", [0, 2])
def test_a_stop_is_no_end_and_the_checkpoint_before_it_stays(
    tmp_path: Path, num_files: int
) -> None:
    state = {"epoch": 0, "local_step": 4, "global_step": 4}
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / STATE_NAME).write_text(json.dumps(state))
    job: Any = SimpleNamespace(parent_weights=None, save_dir=tmp_path, is_reloading=False)
    assert train(_Interrupted(tmp_path, num_files), job).outcome == "stopped"
    assert [(epoch.epoch, epoch.step) for epoch in list_epochs(tmp_path)] == [(0, 4)]
