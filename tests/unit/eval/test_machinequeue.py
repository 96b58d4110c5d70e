"""Whose turn it is."""

import threading
from pathlib import Path

import pytest

from eval.errors import SpecError
from eval.machinequeue import MachineQueue


def in_background(events: list[str], queue: MachineQueue, what: str) -> threading.Thread:
    def run() -> None:
        if what == "start":
            with queue.starting():
                events.append("starts")
        else:
            queue.enter()
            events.append("measures")
            queue.leave()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.2)
    return thread


def test_engines_start_together_and_whoever_is_ready_waits_for_them(tmp_path: Path) -> None:
    events: list[str] = []
    mine, other, third = (MachineQueue(tmp_path / "queue") for _ in range(3))
    with mine.starting():
        in_background(events, other, "start").join(5)
        assert events == ["starts"]
        ready = in_background(events, other, "measure")
        assert events == ["starts"]  # it waits for mine
        late = in_background(events, third, "start")
        assert events == ["starts"]  # whoever is ready comes first
    ready.join(5)
    late.join(5)
    assert events == ["starts", "measures", "starts"]
    assert other.waited_s >= 0.2
    assert mine.waited_s < 0.1


def test_one_at_a_time_is_measured_until_it_rests_or_starts_an_engine(tmp_path: Path) -> None:
    events: list[str] = []
    mine, other = MachineQueue(tmp_path / "queue"), MachineQueue(tmp_path / "queue")
    mine.enter()
    mine.enter()
    waiting = in_background(events, other, "measure")
    assert not events
    with mine.starting():  # gives the turn away, and comes after those who are ready
        waiting.join(5)
        assert events == ["measures"]
    mine.leave()


def test_nobody_waits_who_names_no_file() -> None:
    queue = MachineQueue(None)
    queue.enter()
    with queue.starting():
        queue.enter()
    queue.leave()
    assert queue.waited_s == 0


def test_a_file_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"queue_path: expected to open .*/nowhere/queue\.ready"):
        MachineQueue(tmp_path / "nowhere" / "queue").enter()
