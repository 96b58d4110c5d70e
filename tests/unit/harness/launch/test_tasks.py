import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.drafter.provenance import code_digest
from harness.errors import PrerequisiteError, WorkError
from harness.launch import tasks
from harness.launch.ports import Task
from harness.launch.tasks import MOST_LOSSES, build_task, follow, gpus_of
from harness.settings import load_settings


class FakeJob:
    """Prints, and has ended when it is looked at for the second time."""

    def __init__(self, task: Task, text: str, code: int, *, is_lost: bool) -> None:
        self.task, self.text, self.code, self.is_lost = task, text, code, is_lost
        self.num_looks = 0

    def poll(self) -> int | None:
        self.num_looks += 1
        if self.num_looks == 1:
            with self.task.log_path.open("a") as log:
                log.write(self.text)
            return None
        return self.code

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class FakeLauncher:
    """Hosts that are lost so often, then one that ends with this code."""

    def __init__(self, num_losses: int = 0, code: int = 0, places: Sequence[int] = ()) -> None:
        self.num_losses, self.code, self.places = num_losses, code, places
        self.launched: list[str] = []

    def count_places(self, num_gpus: int) -> int:
        return self.places[num_gpus]

    def launch(self, task: Task) -> FakeJob:
        self.launched.append(task.id)
        is_lost = len(self.launched) <= self.num_losses
        text = f"attempt {len(self.launched)}\n"
        return FakeJob(task, text, -9 if is_lost else self.code, is_lost=is_lost)

    def close(self) -> None: ...


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return build_task("a task", ("-c", ""), load_settings(tmp_path), tmp_path / "launch" / "log")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_LISTEN_S", 0.0)


def test_a_task_names_project_store_and_code_and_hides_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "PlantedPassword")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/not/carried")
    settings = load_settings(tmp_path)
    task = build_task("a task", ("-c", ""), settings, tmp_path / "log")
    assert task.environment["HARNESS_ROOT"] == str(tmp_path)
    assert task.environment["MLFLOW_TRACKING_URI"] == settings.tracking_uri
    assert task.environment["MLFLOW_TRACKING_PASSWORD"] == "PlantedPassword"
    assert "SSH_AUTH_SOCK" not in task.environment
    assert "PlantedPassword" not in repr(task)
    assert task.code == code_digest()


def test_what_a_task_prints_comes_back_and_so_does_its_exit_code(task: Task) -> None:
    task.log_path.write_text("of an earlier task\n")
    told: list[str] = []
    assert follow(FakeLauncher(code=4), task, told.append, lambda lost: lost) == 4
    assert told == ["attempt 1\n"]


class Halving(FakeJob):
    """What it prints is looked at in the middle of a character."""

    pieces = (b"caf\xc3", b"\xa9\n", b"\xe2\x82")

    def poll(self) -> int | None:
        with self.task.log_path.open("ab") as log:
            log.write(self.pieces[self.num_looks])
        self.num_looks += 1
        return self.code if self.num_looks == len(self.pieces) else None


def test_a_character_that_comes_in_two_pieces_is_one(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, told = FakeLauncher(), list[str]()
    job = Halving(task, "", 0, is_lost=False)
    monkeypatch.setattr(launcher, "launch", lambda _: job)
    follow(launcher, task, told.append, lambda lost: lost)
    assert "".join(told) == "caf\N{LATIN SMALL LETTER E WITH ACUTE}\n\N{REPLACEMENT CHARACTER}"


def test_a_lost_host_closes_its_runs_and_the_same_task_goes_on(task: Task) -> None:
    launcher, told, settled = FakeLauncher(num_losses=2), list[str](), list[Task]()

    def settle(lost: Task) -> Task:
        settled.append(lost)
        return lost

    assert follow(launcher, task, told.append, settle) == 0
    assert launcher.launched == [task.id] * 3
    assert settled == [task, task]
    assert "attempt 3\n" in told


def test_a_task_that_loses_every_host_is_given_up(task: Task) -> None:
    launcher = FakeLauncher(num_losses=MOST_LOSSES)
    with pytest.raises(WorkError, match=f"lost {MOST_LOSSES} hosts"):
        follow(launcher, task, lambda _: None, lambda lost: lost)


class Waiting(FakeJob):
    """It waits for room, and is taken out of the queue when it is asked to stop."""

    def poll(self) -> int | None:
        self.num_looks += 1
        if self.num_looks == 1:
            signal.raise_signal(signal.SIGINT)
        return self.code if self.num_looks > 2 else None

    def interrupt(self) -> None:
        self.num_looks = 2


@pytest.mark.parametrize(
    ("code", "is_lost", "told"), [(-9, False, 130), (-9, True, 130), (0, False, 0), (1, False, 1)]
)
def test_a_task_that_was_asked_to_stop_and_told_no_exit_code_was_interrupted(
    task: Task, monkeypatch: pytest.MonkeyPatch, code: int, is_lost: bool, told: int
) -> None:
    launcher = FakeLauncher()
    job = Waiting(task, "", code, is_lost=is_lost)
    monkeypatch.setattr(launcher, "launch", lambda _: job)
    assert follow(launcher, task, lambda _: None, lambda lost: lost) == told


def test_one_gpu_is_done_without_where_there_is_none_but_a_gang_is_not() -> None:
    assert gpus_of(FakeLauncher(places=(4, 2, 1)), 2) == 2
    assert gpus_of(FakeLauncher(places=(4, 0, 0)), 1) == 0
    with pytest.raises(PrerequisiteError, match="a host with 2 GPUs"):
        gpus_of(FakeLauncher(places=(4, 0, 0)), 2)
