"""What a machine does to a sweep: a locked database, a full disk, GPUs to be shared."""

import contextlib
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.settings import Settings
from harness.sweep.records import TrialState
from harness.tracking.embedded import database_path

from .conftest import Sweep, run_harness
from .test_sweep import (
    SLOW,
    family,
    finish,
    require_accounted,
    runs_of,
    trials_of,
    wait_for,
)

pytestmark = pytest.mark.timeout(580)
_LOCKED_S = 30.0
"""Longer than SQLite waits by itself: 20 s."""
_SIZE = 2 << 30
_ROOM = 64 << 10


def has_begun(settings: Settings, name: str) -> bool:
    path = settings.sweeps_dir / name / "trials" / "0000" / "events-1.jsonl"
    return path.is_file() and b'"epoch"' in path.read_bytes()


def test_a_database_that_is_locked_is_waited_for(settings: Settings, start: Sweep) -> None:
    process = start("locked", fixed=SLOW, n_trials=1)
    wait_for(lambda: has_begun(settings, "locked"), process, "an epoch")
    connection = sqlite3.connect(database_path(settings.mlruns_dir), timeout=30)
    connection.execute("BEGIN EXCLUSIVE")
    time.sleep(_LOCKED_S)
    connection.rollback()
    connection.close()
    finish(process)
    (trial,) = require_accounted(settings, "locked", 1)
    assert trial.state is TrialState.COMPLETE
    assert trial.num_attempts == 1


@pytest.fixture
def small_disk(settings: Settings) -> Iterator[Path]:
    """The checkpoints' folder on a disk of its own that can be made smaller."""
    folder = settings.checkpoints_dir
    folder.mkdir(parents=True, exist_ok=True)
    with mounted(folder, "-t", "tmpfs", "-o", f"size={_SIZE}", "harness-test"):
        yield folder


@contextlib.contextmanager
def mounted(folder: Path, *what: str) -> Iterator[None]:
    """Something mounted on a folder; skips for a user who may not: that needs CAP_SYS_ADMIN."""
    mount = ["mount", *what, str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(mount)}, as root alone may: {done.stderr.strip()}")
    yield
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(folder: Path, size: int) -> None:
    """Makes the disk larger or smaller; not smaller than what is on it, where that just grew."""
    mount = ["mount", "-o", f"remount,size={size}", str(folder)]
    subprocess.run(mount, capture_output=True, check=False)


def test_a_full_disk_fails_the_trial_by_name_and_a_retry_ends_well(
    settings: Settings, start: Sweep, small_disk: Path
) -> None:
    process = start("full", fixed=SLOW, n_trials=1, max_failures=1)
    wait_for(lambda: has_begun(settings, "full"), process, "an epoch")
    while process.poll() is None:  # what is deleted meanwhile makes no room
        resize(small_disk, shutil.disk_usage(small_disk).used + _ROOM)
        time.sleep(0.2)
    finish(process, 1)
    (failed,) = trials_of(settings, "full")
    assert failed.facts["reason"] == "disk full", failed.facts["detail"]
    resize(small_disk, _SIZE)
    finish(run_harness(settings, "sweep", "retry", "full"))
    finish(start("full", fixed=SLOW, n_trials=1, max_failures=1))
    trials = require_accounted(settings, "full", 2)
    assert [trial.state for trial in trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert len([run for run in runs_of(settings, "full") if run.kind == "train"]) == 2


def test_a_trial_and_its_trainer_see_the_gpu_of_their_slot(
    settings: Settings, start: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # there is none: torch takes the CPU
    process = start("placed", fixed={**SLOW, "device": "auto"}, n_trials=1)
    wait_for(lambda: has_begun(settings, "placed"), process, "an epoch")
    seen = {}
    for number, line in family(settings).items():
        variables = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        devices = [v for v in variables if v.startswith(b"CUDA_VISIBLE_DEVICES=")]
        seen["trainer" if "training.worker" in line else "trial"] = devices
    assert seen == {name: [b"CUDA_VISIBLE_DEVICES=7"] for name in ("trial", "trainer")}
    finish(process)
    (trial,) = require_accounted(settings, "placed", 1)
    assert trial.facts["slot"] == "gpu7"


@pytest.fixture
def artifacts(settings: Settings) -> Iterator[Path]:
    """The store's artifacts as a mount of their own, which can be made read-only."""
    folder = settings.artifacts_dir
    folder.mkdir(parents=True, exist_ok=True)
    with mounted(folder, "--bind", str(folder)):
        yield folder


def remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,bind,{mode}", str(folder)], check=True)


def test_artifacts_that_become_read_only_fail_the_trial_alone_and_a_retry_ends_well(
    settings: Settings, start: Sweep, artifacts: Path
) -> None:
    process = start("sealed", n_trials=2, max_failures=1)
    second = settings.sweeps_dir / "sealed" / "trials" / "0001"
    wait_for(second.is_dir, process, "the second trial")
    remount(artifacts, "ro")
    finish(process, 1)
    remount(artifacts, "rw")
    first, failed = trials_of(settings, "sealed")
    assert (first.state, failed.state) == (TrialState.COMPLETE, TrialState.FAIL)
    assert "read-only" in failed.facts["detail"].lower()
    finish(run_harness(settings, "sweep", "retry", "sealed"))
    finish(start("sealed", n_trials=2, max_failures=1))
    trials = require_accounted(settings, "sealed", 3)
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert [trial.state for trial in trials] == states
    assert trials[0].values == first.values
