import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from harness.errors import WorkError
from harness.remote.follow import Screen, follow
from harness.remote.host import Host, LineError
from harness.remote.records import JobState, RemoteJob

JOB = RemoteJob(
    id="1-train", host="box", root="r", python="python3", code="c" * 64, arguments=("train",),
    created_at="now",
)  # fmt: skip
OUTPUT = b"one\ntwo\nthree\n"


class _Process:
    """ssh, which gives some bytes and then ends with a code."""

    def __init__(self, piece: bytes, code: int) -> None:
        reader, writer = os.pipe()
        os.write(writer, piece)
        os.close(writer)
        self.stdout = os.fdopen(reader, "rb")
        self.stderr = io.BytesIO(b"said")
        self._code = code

    def wait(self) -> int:
        return self._code


class _Line(Host):
    """A line that breaks after so many bytes and seconds, again and again."""

    def __init__(self, lengths: Sequence[int], code: int = 255, holds_s: float = 1.0) -> None:
        super().__init__("box", sleep=lambda _: None)
        self._lengths, self._code, self._holds_s = iter(lengths), code, holds_s
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds

    @contextmanager
    def opened(self, words: Sequence[str]) -> Iterator[Any]:
        offset, length = int(words[-1]), next(self._lengths)
        self.wait(self._holds_s)
        piece = OUTPUT[offset : offset + length]
        is_whole = offset + length >= len(OUTPUT)
        yield _Process(piece, 0 if is_whole else self._code)

    def run(self, words: Sequence[str], told: bytes = b"") -> bytes:
        return JobState(state="ended", code=3).model_dump_json().encode()


def followed(line: _Line) -> tuple[bytes, JobState, list[str]]:
    shown: list[bytes] = []
    told: list[str] = []
    screen = Screen(shown.append, told.append)
    state = follow(line, JOB, screen, clock=lambda: line.now, sleep=line.wait)
    return b"".join(shown), state, told


@pytest.mark.parametrize("lengths", [[99], [5, 0, 0, 4, 99], [1] * 20])
def test_every_byte_is_shown_once_however_often_the_line_breaks(lengths: list[int]) -> None:
    shown, state, told = followed(_Line(lengths))
    assert (shown, state.code) == (OUTPUT, 3)
    assert all("the job goes on" in text for text in told)


def test_a_host_that_stays_away_is_given_up_with_the_way_back() -> None:
    line = _Line([0] * 999, holds_s=20.0)
    with pytest.raises(LineError, match="away for 15 min") as error:
        followed(line)
    assert "harness remote attach 1-train" in (error.value.hint or "")
    assert 900 < line.now < 960


def test_a_job_that_is_silent_for_hours_was_not_away_when_its_line_breaks() -> None:
    shown, state, told = followed(_Line([0, 0, 99], holds_s=7200.0))
    assert (shown, state.code, len(told)) == (OUTPUT, 3, 2)


def test_what_is_no_matter_of_the_line_is_an_error() -> None:
    with pytest.raises(WorkError, match="exited with 1: said"):
        followed(_Line([2], code=1))
