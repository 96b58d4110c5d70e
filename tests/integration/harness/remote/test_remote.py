"""A training on a host over ssh: the line is cut, the code there changed, the job stopped."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from fakes.command_line import environment_of, run_harness, start_python
from fakes.loopback_ssh import Sshd

from harness.remote.records import LOG_NAME, OWNER_NAME, JobState, RemoteJob, Started
from harness.settings import load_settings
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.tracking.resolve import resolve_drafter
from harness.tracking.store import open_store

pytestmark = pytest.mark.timeout(200)

SECRET = "planted-secret-7391"

Found = TypeVar("Found")


def wait_for(look: Callable[[], Found | None], what: str, timeout_s: float = 60) -> Found:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)
    return found


def worker_of(job: Path) -> psutil.Process | None:
    """The process that trains in a job of the host."""
    owner = Started.model_validate_json((job / OWNER_NAME).read_bytes()).owner
    for child in psutil.Process(owner.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "harness.training.worker" in child.cmdline():
                return child
    return None


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def start(project: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**environment_of(project), "PLANTED_TOKEN": SECRET}
    return start_python(project, "-m", "harness", "remote", *words, environment=environment)


def require_nowhere(secret: str, *folders: Path) -> None:
    for path in (p for folder in folders for p in folder.rglob("*") if p.is_file()):
        assert secret.encode() not in path.read_bytes(), path


def test_a_training_outlives_its_line_and_its_run_comes_home(
    project: Path, box: tuple[str, ...], sshd: Sshd
) -> None:
    process = start(
        project, "run", *box, "--pass-env", "PLANTED_TOKEN", "--", "train", "train.yaml"
    )
    there = Path(box[-1]) / "jobs"
    (owner,) = wait_for(lambda: list(there.glob(f"*/{OWNER_NAME}")), "the start of the job")
    worker = wait_for(lambda: worker_of(owner.parent), "a worker")
    with suspended(worker):  # else it may be through before the line breaks
        assert "training" in (owner.parent / LOG_NAME).read_text()
        wait_for(sshd.break_lines, "a break of the line")
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    assert "broke; the job goes on" in errors
    assert output.count("Checkpoints (") == 1, "what was printed is shown once"

    settings = load_settings(project)
    store = open_store(settings)
    (run,) = store.find_runs(kind=names.KIND_TRAIN)
    assert run.status is RunStatus.FINISHED
    (path,) = (settings.mlruns_dir / "remote").glob("*/job.json")
    job = RemoteJob.model_validate_json(path.read_bytes())
    assert (run.tags[names.TAG_TASK], run.tags[names.TAG_CODE_DIGEST]) == (job.id, job.code)
    assert run.metrics["train/loss"] > 0
    best = resolve_drafter(f"run:{run.run_id}", settings, store)
    assert best.path.is_relative_to(settings.checkpoints_dir)
    assert (best.path / "model.safetensors").is_file()
    require_nowhere(SECRET, there.parent, settings.mlruns_dir)

    again = run_harness(project, "remote", "fetch")
    assert "brought home: 0 runs" in again.stderr, "what is here is not brought twice"


def test_code_that_was_changed_there_is_refused_and_the_next_run_replaces_it(
    project: Path, box: tuple[str, ...]
) -> None:
    root = Path(box[-1])
    (job,) = (root / "jobs").iterdir()
    code = RemoteJob.model_validate_json((job / "job.json").read_bytes()).code
    changed = root / "code" / code / "harness" / "errors.py"
    text = changed.read_text()
    changed.write_text(text + "# not what was sent\n")
    words = ("-P", "-m", "harness.remote.job", "start", str(job), "2")
    environment = {**environment_of(root), "PYTHONPATH": str(changed.parents[1])}
    refused = start_python(root, *words, environment=environment)
    _, errors = refused.communicate(timeout=30)
    assert refused.returncode == 4
    assert f"expected code {code}" in errors
    done = run_harness(project, "remote", "run", *box, "--", "verify", "--help")
    assert done.returncode == 0, done.stderr
    assert changed.read_text() == text


def test_a_detached_job_is_stopped_from_here_and_comes_home_as_killed(
    project: Path, box: tuple[str, ...]
) -> None:
    begun = run_harness(
        project, "remote", "run", *box, "--detach", "--", "train", "long.yaml", "--set", "seed=5"
    )
    assert begun.returncode == 0, begun.stderr

    def state() -> JobState:
        told = run_harness(project, "remote", "status", "--json")
        return JobState.model_validate(json.loads(told.stdout))

    jobs = Path(box[-1]) / "jobs"
    job = max(jobs.iterdir(), key=lambda path: path.name)
    wait_for(
        lambda: list(job.glob("mlruns/checkpoints/*/epochs/1/training_state.json")), "an epoch"
    )
    assert state().state == "running"
    assert run_harness(project, "remote", "stop").returncode == 0
    ended = run_harness(project, "remote", "attach")
    assert ended.returncode == 130
    assert "brought home: 1 runs" in ended.stderr
    assert state().code == 130
    # Not through the store of the first test, whose connection still reads what was there then.
    with closing(sqlite3.connect(project / "mlruns" / "mlflow.db")) as connection:
        asked = "SELECT status FROM runs JOIN params USING (run_uuid) WHERE key = ? AND value = ?"
        assert connection.execute(asked, ("seed", "5")).fetchall() == [(RunStatus.KILLED.value,)]


def test_a_host_without_the_packages_is_refused_before_anything_is_sent(
    project: Path, box: tuple[str, ...]
) -> None:
    before = sorted((Path(box[-1]) / "jobs").iterdir())
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    words = [*box, "--python", bare, "--gpus", "1", "--", "train", "train.yaml"]
    refused = run_harness(project, "remote", "run", *words)
    assert refused.returncode == 3
    assert "packages: " in refused.stderr
    assert "GPUs: 0 of 0 free" in refused.stderr
    assert sorted((Path(box[-1]) / "jobs").iterdir()) == before
