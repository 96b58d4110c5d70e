"""A training that is killed, stopped or orphaned: the status it leaves, and how it goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from harness.config.load import dump_yaml
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import RunStatus, RunSummary
from harness.tracking.store import Store
from harness.training.folders import list_epochs

from .conftest import MakeConfig

pytestmark = pytest.mark.timeout(400)

_EPOCHS, _ENDLESS_EPOCHS = 60, 2000
_WAIT_S = 120.0

Found = TypeVar("Found")


def write_config(make_config: MakeConfig, path: Path, epochs: int) -> Path:
    """Each test has its own seed, so that none goes on with another's training."""
    seed = int.from_bytes(os.urandom(2))
    path.write_text(
        dump_yaml(make_config(epochs=epochs, keep_best=1, upload_below_mb=0, seed=seed))
    )
    return path


@pytest.fixture
def config_path(make_config: MakeConfig, tmp_path: Path) -> Path:
    """Long enough to be killed in, short enough to be finished."""
    return write_config(make_config, tmp_path / "train.yaml", _EPOCHS)


@pytest.fixture
def endless_path(make_config: MakeConfig, tmp_path: Path) -> Path:
    """For tests that do not wait for its end, on however fast a machine."""
    return write_config(make_config, tmp_path / "endless.yaml", _ENDLESS_EPOCHS)


@contextmanager
def train(config_path: Path, settings: Settings) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "HARNESS_ROOT": str(settings.root_dir),
        "HARNESS_CACHE": str(settings.cache_dir),
        "MLFLOW_TRACKING_URI": settings.tracking_uri,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "train", str(config_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(look: Callable[[], Found | None], what: str) -> Found:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    pytest.fail(f"{what} did not happen within {_WAIT_S:.0f} s")


def worker_of(process: subprocess.Popen[str]) -> psutil.Process:
    def look() -> psutil.Process | None:
        children = psutil.Process(process.pid).children(recursive=True)
        return next((c for c in children if "harness.training.worker" in c.cmdline()), None)

    return wait_for(look, "a worker")


def newest_run(store: Store, status: RunStatus | None = None) -> RunSummary:
    return store.find_runs(kind=names.KIND_TRAIN, status=status, limit=1)[0]


def wait_for_epochs(store: Store, settings: Settings, count: int) -> RunSummary:
    def look() -> RunSummary | None:
        running = store.find_runs(kind=names.KIND_TRAIN, status=RunStatus.RUNNING, limit=1)
        if not running:
            return None
        folder = settings.checkpoints_dir / running[0].run_id / "epochs"
        epochs = list_epochs(folder)
        return running[0] if epochs and epochs[-1].epoch >= count - 1 else None

    return wait_for(look, f"epoch {count}")


def test_killed_child_then_killed_parent_then_the_same_command_finishes(
    config_path: Path, settings: Settings, store: Store
) -> None:
    with train(config_path, settings) as first:
        worker = worker_of(first)
        run = wait_for_epochs(store, settings, 2)
        worker.send_signal(signal.SIGKILL)
        _, errors = first.communicate(timeout=_WAIT_S)
    assert first.returncode == 1
    assert "killed by SIGKILL" in errors
    assert "Traceback" not in errors
    failed = store.get_run(run.run_id)
    assert failed.status is RunStatus.FAILED
    assert "SIGKILL" in failed.tags[names.TAG_FAILURE]
    done = max(c.epoch or 0 for c in store.checkpoints(run.run_id))

    with train(config_path, settings) as second:
        worker = worker_of(second)
        wait_for_epochs(store, settings, done + 4)
        second.send_signal(signal.SIGKILL)
        second.communicate(timeout=_WAIT_S)
        wait_for(lambda: not worker.is_running() or worker.status() == "zombie", "the child's end")
    assert store.get_run(run.run_id).status is RunStatus.RUNNING

    with train(config_path, settings) as third:
        _, errors = third.communicate(timeout=_WAIT_S)
    assert third.returncode == 0, errors
    finished = store.get_run(run.run_id)
    assert finished.status is RunStatus.FINISHED
    assert finished.tags[names.TAG_ATTEMPT] == "3"
    assert int(finished.tags["attempt.2.first_step"]) > 0
    assert int(finished.tags["attempt.3.first_step"]) > int(finished.tags["attempt.2.first_step"])
    epochs = [checkpoint.epoch for checkpoint in store.checkpoints(run.run_id)]
    assert epochs == list(range(_EPOCHS))
    kept = list_epochs(settings.checkpoints_dir / run.run_id / "epochs")
    assert len(kept) <= 2


def test_ctrl_c_saves_a_checkpoint_within_the_epoch_and_marks_the_run_killed(
    endless_path: Path, settings: Settings, store: Store
) -> None:
    with train(endless_path, settings) as process:
        run = wait_for_epochs(store, settings, 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_WAIT_S)
    assert process.returncode == 130
    stopped = store.get_run(run.run_id)
    assert stopped.status is RunStatus.KILLED
    assert stopped.tags[names.TAG_FAILURE].startswith("interrupted after step")
    assert list_epochs(settings.checkpoints_dir / run.run_id / "epochs")[-1].is_resumable


def test_a_second_ctrl_c_ends_the_child_at_once(
    endless_path: Path, settings: Settings, store: Store
) -> None:
    with train(endless_path, settings) as process:
        worker = worker_of(process)
        worker.suspend()
        process.send_signal(signal.SIGTERM)
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_WAIT_S)
    assert process.returncode == 130
    assert not worker.is_running()
    assert newest_run(store).status is RunStatus.KILLED
