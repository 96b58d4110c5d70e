"""Whose turn it is."""

import threading
from pathlib import Path

import pytest

from eval.errors import SpecError
from eval.turns import Turns


def in_background(events: list[str], turns: Turns, what: str) -> threading.Thread:
    def run() -> None:
        if what == "start":
            with turns.starting():
                events.append("starts")
        else:
            turns.measure()
            events.append("measures")
            turns.rest()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.2)
    return thread


def test_engines_start_together_and_whoever_is_ready_waits_for_them(tmp_path: Path) -> None:
    events: list[str] = []
    mine, other, third = (Turns(tmp_path / "turns") for _ in range(3))
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
    mine, other = Turns(tmp_path / "turns"), Turns(tmp_path / "turns")
    mine.measure()
    mine.measure()
    waiting = in_background(events, other, "measure")
    assert not events
    with mine.starting():  # gives the turn away, and comes after those who are ready
        waiting.join(5)
        assert events == ["measures"]
    mine.rest()


def test_nobody_waits_who_names_no_file() -> None:
    turns = Turns(None)
    turns.measure()
    with turns.starting():
        turns.measure()
    turns.rest()
    assert turns.waited_s == 0


def test_a_file_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"turns: expected to open .*/nowhere/turns\.ready: No such"
    ):
        Turns(tmp_path / "nowhere" / "turns").measure()
