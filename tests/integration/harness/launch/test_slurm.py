"""Tasks as jobs of submitit, on its local executor: output, stopping, secrets, a sweep."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.errors import PrerequisiteError
from harness.launch.ports import Job, Task
from harness.launch.slurm import SlurmLauncher
from harness.launch.tasks import build_task
from harness.settings import Settings, load_settings

from .test_ray import FAMILY

pytestmark = pytest.mark.timeout(120)
_WAIT_S = 30.0
SECRET = "planted-secret-4402"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(tmp_path_factory.mktemp("slurm"))


@pytest.fixture
def launcher(settings: Settings) -> Iterator[SlurmLauncher]:
    with SlurmLauncher("local", settings) as found:
        yield found


def make(settings: Settings, folder: Path, text: str, *words: str) -> Task:
    return build_task(
        "a task", ("-c", text, *words), settings, folder / "log", result_path=folder / "out"
    )


def wait_for(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not look():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


def end_of(job: Job) -> int | None:
    wait_for(lambda: job.poll() is not None, "its end")
    return job.poll()


def test_a_task_gives_its_exit_code_and_output_and_leaves_no_login_on_disk(
    settings: Settings, launcher: SlurmLauncher, tmp_path: Path
) -> None:
    text = (
        "import os, sys; print(os.environ['MLFLOW_TRACKING_PASSWORD'] == sys.argv[1][::-1]); "
        "print(os.environ['HARNESS_ROOT']); print('said', file=sys.stderr); sys.exit(7)"
    )
    task = make(settings, tmp_path, text, SECRET[::-1])
    secret = {"MLFLOW_TRACKING_PASSWORD": SECRET}
    task = task.model_copy(update={"environment": {**task.environment, **secret}})
    job = launcher.launch(task)
    assert end_of(job) == 7
    assert not job.is_lost
    assert (tmp_path / "out").read_text().split() == ["True", str(settings.root_dir)]
    assert (tmp_path / "log").read_text() == "said\n"
    assert "MLFLOW_TRACKING_PASSWORD" not in os.environ
    files = [path for path in launcher.folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def require_gone(pids: Path) -> None:
    def is_left(pid: str) -> bool:
        try:
            return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    wait_for(lambda: not any(map(is_left, pids.read_text().split())), "the end of its family")


@pytest.mark.parametrize("is_now", [False, True])
def test_a_task_that_is_stopped_takes_its_grandchildren_along(
    settings: Settings, launcher: SlurmLauncher, tmp_path: Path, is_now: bool
) -> None:
    pids = tmp_path / "pids"
    job = launcher.launch(make(settings, tmp_path, FAMILY, str(pids)))
    wait_for(lambda: pids.exists() and pids.read_text().count(" "), "its start")
    job.kill() if is_now else job.interrupt()
    assert end_of(job) == (-9 if is_now else -15)
    require_gone(pids)
    job.close()


def test_a_host_with_other_code_is_refused_by_name(
    settings: Settings, launcher: SlurmLauncher, tmp_path: Path
) -> None:
    task = make(settings, tmp_path, "print(1)").model_copy(update={"code": "0" * 64})
    job = launcher.launch(task)
    with pytest.raises(PrerequisiteError, match="expected " + "0" * 64):
        end_of(job)
    assert not (tmp_path / "out").exists()


def test_closing_ends_what_still_runs(settings: Settings, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with SlurmLauncher("local", settings) as launcher:
        launcher.launch(make(settings, tmp_path, FAMILY, str(pids)))
        wait_for(lambda: pids.exists() and pids.read_text().count(" "), "its start")
    require_gone(pids)
