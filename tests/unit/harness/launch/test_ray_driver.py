from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    OutOfMemoryError,
    RayError,
    RuntimeEnvSetupError,
)

from harness.launch import ray_driver
from harness.launch.hosts import HostFacts, Wanted
from harness.launch.ports import Task
from harness.launch.ray_driver import Driver
from harness.launch.ray_place import Seen
from harness.launch.ray_words import Ended, Launch, Lost, Word

FIT = HostFacts("one", "c" * 64, {}, sees_folder=True)
WAITS = "for room"
AWAY = ActorUnavailableError("the line is cut", None)
RUNS, ENDED = Seen(None, b"", b"", is_left=False), Seen(7, b"", b"", is_left=False)


class FakePlace:
    """An actor whose answers to each call are known before; the last one stays."""

    def __init__(self, **answers: list[object]) -> None:
        self.answers: dict[str, list[object]] = {"start": [None], "end": [None], **answers}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*_: object) -> object:
            self.calls.append(name)
            given = self.answers[name]
            return given.pop(0) if len(given) > 1 else given[0]

        return SimpleNamespace(remote=remote)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Word]]:
    """Runs a task to its end, in places whose shapes come one after the other; what is told."""

    def wait(answers: list[object], **_: object) -> tuple[list[object], list[object]]:
        return ([], answers) if answers == [WAITS] else (answers, [])

    def get(answer: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    fake = SimpleNamespace(wait=wait, get=get, nodes=list, kill=lambda _: None)
    monkeypatch.setattr(ray_driver, "ray", fake)
    monkeypatch.setattr(ray_driver, "_POLL_S", 0.0)
    monkeypatch.setattr(ray_driver, "_CHECK_S", 0.0)

    def find(*places: FakePlace) -> list[Word]:
        left = list(enumerate(places))
        shapes = [shape for shape, _ in left]
        last = shapes[-1]
        monkeypatch.setattr(
            ray_driver, "shape_of", lambda *_, **__: shapes.pop(0) if shapes else last
        )

        def lease(shape: int, _: Path) -> SimpleNamespace:
            number, place = left.pop(0)
            assert shape == number
            end = partial(place.calls.append, "given back")
            return SimpleNamespace(place=place, shape=shape, end=end, facts=place.describe.remote())

        monkeypatch.setattr(ray_driver, "Lease", lease)
        said: list[Word] = []
        wanted = Wanted(
            address="", code_dir=tmp_path, code=FIT.code, marker=tmp_path, only_host=None
        )
        driver = Driver(wanted, said.append)
        task = Task(
            id="1", name="a", arguments=(), folder=tmp_path, code="", log_path=tmp_path / "log"
        )
        driver.obey(Launch(task=task))
        for _ in range(20):
            driver.work()
        return said

    return find


def test_a_hiccup_of_the_network_is_waited_out(run: Callable[..., list[Word]]) -> None:
    place = FakePlace(describe=[AWAY, AWAY, FIT], look=[RUNS, AWAY, RUNS, AWAY, ENDED])
    assert run(place) == [Ended(id="1", code=7)]
    assert place.calls.count("start") == 1


def test_a_task_that_waits_for_more_than_any_host_has_now_takes_what_there_is(
    run: Callable[..., list[Word]],
) -> None:
    large, small = FakePlace(describe=[WAITS]), FakePlace(describe=[FIT], look=[RUNS, ENDED])
    assert run(large, small) == [Ended(id="1", code=7)]
    assert large.calls == ["describe", "given back"]


def test_a_task_of_which_nobody_knows_whether_it_was_begun_is_lost(
    run: Callable[..., list[Word]], tmp_path: Path
) -> None:
    place = FakePlace(describe=[FIT], start=[AWAY], look=[RuntimeError("no task was started")])
    (lost,) = run(place)
    assert isinstance(lost, Lost)
    assert "look" not in place.calls
    assert (tmp_path / "log").read_text().startswith("its host was lost: ")


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        OutOfMemoryError("the memory of its node\nis short"),
        RuntimeEnvSetupError("no room for the code"),
    ],
)
def test_the_end_of_an_actor_in_whatever_words_loses_its_task_alone(
    run: Callable[..., list[Word]], error: RayError
) -> None:
    (lost,) = run(FakePlace(describe=[FIT], look=[RUNS, error]))
    assert isinstance(lost, Lost)
    assert "\n" not in lost.why


@pytest.mark.parametrize(("code", "is_lost"), [(130, True), (0, False)])
def test_a_task_that_stopped_because_nobody_looked_is_lost_unless_it_was_through(
    run: Callable[..., list[Word]], code: int, is_lost: bool
) -> None:
    (word,) = run(FakePlace(describe=[FIT], look=[RUNS, Seen(code, b"", b"", is_left=True)]))
    assert isinstance(word, Lost if is_lost else Ended)
