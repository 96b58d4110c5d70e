import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from submitit.core.utils import FailedJobError

from harness.drafter.provenance import code_digest
from harness.errors import PrerequisiteError
from harness.launch.ports import Task
from harness.launch.slurm import SlurmJob, SlurmLauncher, count_in
from harness.launch.slurm_task import Ended, _Sign, _Taken, run_task, stop_path
from harness.settings import added_environment, load_settings, set_variables


class FakeJob:
    """A job of submitit whose state is what was last heard of it."""

    job_id = "17"

    def __init__(self, folder: Path, *states: str, result: Ended | None = None) -> None:
        self.paths = SimpleNamespace(result_pickle=folder / "result")
        self.states, self.ended = list(states), result
        self.is_cancelled = False

    @property
    def state(self) -> str:
        return self.states[0]

    def get_info(self) -> None:
        if len(self.states) > 1:
            self.states.pop(0)

    def done(self) -> bool:
        waits = ("PENDING", "RUNNING", "PREEMPTED")  # as submitit has it
        return self.paths.result_pickle.exists() or self.state not in waits

    def exception(self) -> None: ...

    def result(self) -> str:
        assert self.ended is not None
        return self.ended.model_dump_json()

    def cancel(self, *, check: bool) -> None:
        assert not check
        self.is_cancelled = True


class FakeSlurm(SlurmLauncher):
    """Gives out jobs that were made before; an exception is what sbatch says."""

    def __init__(self, folder: Path, *jobs: FakeJob | Exception, address: str = "local") -> None:
        super().__init__(address, load_settings(folder))
        self._made = iter(jobs)
        self.executor: Any = None

    def _submit(self, executor: Any, text: str) -> FakeJob:
        self.executor = executor
        job = next(self._made)
        if isinstance(job, Exception):
            raise job
        return job

    def begin(self, **needs: Any) -> SlurmJob:
        path = self.folder / "log"
        task = Task(name="a", arguments=(), folder=self.folder, code="", log_path=path, **needs)
        return self.launch(task)

    def script(self) -> str:
        """What sbatch was given for the last task."""
        return str(self.executor._executor._make_submission_file_text("run", "id"))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be changed; a look at a job takes a second."""
    found = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: found[0], sleep=lambda _: found.append(found.pop() + 1.0)
    )
    monkeypatch.setattr("harness.launch.slurm.time", clock)
    return found


@pytest.fixture
def sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to have Slurm, and a store that is a server."""
    monkeypatch.setattr("harness.launch.slurm.shutil.which", lambda _: "/usr/bin/sbatch")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://store")
    monkeypatch.delenv("SBATCH_CPUS_PER_GPU", raising=False)


@pytest.mark.usefixtures("sbatch")
def test_slurm_is_told_not_to_begin_a_job_again(tmp_path: Path) -> None:
    with FakeSlurm(tmp_path, FakeJob(tmp_path, "TIMEOUT"), address="gpus") as launcher:
        launcher.begin()
        text = launcher.script()
    assert "#SBATCH --no-requeue\n" in text
    assert "#SBATCH --signal=USR2@180\n" in text
    assert "#SBATCH --partition=gpus\n" in text


@pytest.mark.usefixtures("sbatch")
@pytest.mark.parametrize(
    ("needs", "own", "num_asked"),
    [
        ({"num_gpus": 2}, None, 2),
        ({"num_gpus": 2}, "4", 0),
        ({"num_gpus": 2, "is_alone": True}, None, 0),
        ({}, None, 0),
    ],
)
def test_cpus_are_asked_for_with_the_gpus_unless_the_user_did_or_the_node_is_taken_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    needs: dict[str, Any],
    own: str | None,
    num_asked: int,
) -> None:
    if own:
        monkeypatch.setenv("SBATCH_CPUS_PER_GPU", own)
    with FakeSlurm(tmp_path, FakeJob(tmp_path, "TIMEOUT"), address="gpus") as launcher:
        launcher.begin(**needs)
        text = launcher.script()
    assert text.count("--cpus-per-task=16") == text.count("--cpus-per-") == num_asked
    assert ("#SBATCH --gpus-per-node=2\n" in text) is bool(needs)


def test_what_sbatch_says_is_told(tmp_path: Path) -> None:
    with (
        FakeSlurm(tmp_path, FailedJobError("sbatch: error: invalid account")) as launcher,
        pytest.raises(PrerequisiteError, match="did not take a: sbatch: error: invalid account"),
    ):
        launcher.begin()


@pytest.mark.parametrize(
    ("state", "is_lost"),
    [("PREEMPTED", True), ("NODE_FAIL", True), ("TIMEOUT", True), ("OUT_OF_MEMORY", False)],
)
def test_a_job_without_a_word_is_lost_where_slurm_took_its_host(
    tmp_path: Path, state: str, is_lost: bool
) -> None:
    with FakeSlurm(tmp_path, FakeJob(tmp_path, state)) as launcher:
        job = launcher.begin()
        assert (job.poll(), job.is_lost) == (-9, is_lost)


@pytest.mark.parametrize(("state", "is_lost"), [("RUNNING", True), ("CANCELLED by 1000", False)])
def test_a_job_that_was_taken_is_lost_unless_a_person_took_it(
    tmp_path: Path, state: str, is_lost: bool
) -> None:
    found = FakeJob(tmp_path, "RUNNING", state, result=Ended(code=130, is_lost=True))
    with FakeSlurm(tmp_path, found) as launcher:
        job = launcher.begin()
        assert job.poll() is None
        found.paths.result_pickle.touch()
        assert (job.poll(), job.is_lost) == (130, is_lost)


def test_a_result_that_a_shared_folder_shows_late_is_waited_for(
    tmp_path: Path, now: list[float]
) -> None:
    late, never = (FakeJob(tmp_path, "COMPLETED", result=Ended(code=0)) for _ in range(2))
    with FakeSlurm(tmp_path, late, never) as launcher:
        job, other = launcher.begin(), launcher.begin()
        assert job.poll() is None
        assert other.poll() is None
        now[0] += 59.0
        assert job.poll() is None
        late.paths.result_pickle.touch()
        assert job.poll() == 0
        late.paths.result_pickle.unlink()
        now[0] += 1.0
        assert (other.poll(), other.is_lost) == (-9, False)


def test_a_job_that_began_meanwhile_is_asked_and_one_that_waits_is_taken_out(
    tmp_path: Path, now: list[float]
) -> None:
    began, waits = FakeJob(tmp_path, "PENDING", "RUNNING"), FakeJob(tmp_path, "PENDING")
    with FakeSlurm(tmp_path, began, waits) as launcher:
        jobs = launcher.begin(), launcher.begin()
        for job in jobs:
            job.interrupt()
        assert [job.poll() for job in jobs] == [None, -9]
        assert (began.is_cancelled, waits.is_cancelled) == (False, True)
        assert stop_path(launcher.folder, jobs[0].task.id).exists()
    assert began.is_cancelled, "it took longer than it may"
    assert now[0] >= jobs[0].task.patience_s


def test_a_second_refusal_does_not_keep_the_others_from_being_stopped(
    tmp_path: Path, now: list[float]
) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders[:2]:
        folder.mkdir()
        (folder / "result").touch()
    refusal = Ended(code=1, refusal="it has other code")
    jobs = [FakeJob(folder, "RUNNING", result=refusal) for folder in folders]
    with FakeSlurm(tmp_path, *jobs) as launcher:
        begun = [launcher.begin() for _ in jobs]
        with pytest.raises(PrerequisiteError, match="a in job 17: it has other code"):
            begun[0].poll()
        launcher.close()
        assert list(launcher.folder.iterdir()) == [], "no stop file, no sign of life"
    assert jobs[2].is_cancelled
    assert [job.poll() for job in begun] == [1, 1, -9]
    assert now[0] >= begun[2].task.patience_s


def test_each_launcher_has_a_folder_of_its_own_which_stays_where_it_failed(tmp_path: Path) -> None:
    with FakeSlurm(tmp_path) as one, FakeSlurm(tmp_path) as other:
        assert one.folder != other.folder
        (one.folder / "17_0_result.pkl").touch()
    assert not one.folder.exists()
    with pytest.raises(PrerequisiteError), FakeSlurm(tmp_path, FailedJobError("no")) as failed:
        failed.begin()
    assert failed.folder.exists()


def test_room_is_counted_by_node_once_whatever_its_gres_is_called() -> None:
    lines = "a|gpu:h200:8(S:0-1)\nb|gpu:8\nb|gpu:8\nc|(null)\nd|shard:4,gpu:a100:3\n"
    assert count_in(lines, 1) == 19
    assert count_in(lines, 4) == 4
    assert count_in(lines, 9) == 0
    assert count_in(lines, 0) == 4
    assert count_in("", 0) == 0


@pytest.mark.parametrize(("uri", "told"), [(None, "sbatch"), ("sqlite:////a.db", "SQLite")])
def test_a_machine_without_sbatch_and_a_store_in_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str | None, told: str
) -> None:
    if uri:
        monkeypatch.setattr("harness.launch.slurm.shutil.which", lambda _: "/usr/bin/sbatch")
    with pytest.raises(PrerequisiteError, match=told):
        SlurmLauncher("auto", load_settings(tmp_path))


def test_a_host_with_other_code_runs_nothing(tmp_path: Path) -> None:
    task = Task(
        name="a", arguments=("-c", ""), folder=tmp_path, code="0" * 64, log_path=tmp_path / "log"
    )
    said = run_task(task.model_dump_json(), tmp_path, tmp_path / "sign")
    ended = Ended.model_validate_json(said)
    assert ended.code == 1
    assert "expected " + "0" * 64 in (ended.refusal or "")


def test_a_launcher_whose_file_rests_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("harness.launch.slurm_task.time.monotonic", lambda: now)
    path = tmp_path / "sign"
    sign = _Sign(path, 60.0)
    for number in range(5):
        path.write_text(str(number))
        now += 50.0
        assert not sign.is_gone()
    now += 50.0
    assert not sign.is_gone()
    now += 11.0
    assert sign.is_gone()


@pytest.fixture
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_slurms_signals_are_noted(number: int) -> None:
    taken = _Taken()
    assert not taken.is_so
    os.kill(os.getpid(), number)
    assert taken.is_so


class FakeProcess:
    """A task that runs until it is asked to stop."""

    def __init__(self, _: Task) -> None:
        self.code: int | None = None

    def __enter__(self) -> "FakeProcess":
        return self

    def __exit__(self, *_: object) -> None: ...

    def poll(self) -> int | None:
        return self.code

    def interrupt(self) -> None:
        self.code = 130

    def read_log(self, _: int) -> bytes:
        return b""


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("is_stopped", "is_lost"), [(False, True), (True, False)])
def test_a_task_that_hears_nothing_of_its_launcher_is_lost_and_one_that_was_stopped_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool, is_lost: bool
) -> None:
    monkeypatch.setattr("harness.launch.slurm_task.TaskProcess", FakeProcess)
    monkeypatch.setattr("harness.launch.slurm_task._POLL_S", 0.0)
    monkeypatch.setattr("harness.launch.slurm_task.psutil.Process.children", lambda *_, **__: [])
    task = Task(
        name="a", arguments=(), folder=tmp_path, code=code_digest(), log_path=tmp_path / "log"
    )
    if is_stopped:
        stop_path(tmp_path, task.id).touch()
    said = run_task(task.model_dump_json(), tmp_path, tmp_path / "sign", quiet_s=-1.0)
    assert Ended.model_validate_json(said) == Ended(code=130, is_lost=is_lost)


def test_variables_that_are_added_are_taken_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_ONE", "1")
    with added_environment({"HARNESS_ONE": "2", "HARNESS_TWO": "3"}):
        assert set_variables(["HARNESS_ONE", "HARNESS_TWO"]) == {
            "HARNESS_ONE": "2",
            "HARNESS_TWO": "3",
        }
    assert set_variables(["HARNESS_ONE", "HARNESS_TWO"]) == {"HARNESS_ONE": "1"}
