import threading
from collections.abc import Sequence

import pytest

from harness.errors import TrackingError
from harness.tracking.records import Metric
from harness.training.spool import Spool

_WAIT_S = 10.0


class Target:
    """A store that hangs until it is let go on, and may refuse."""

    def __init__(self) -> None:
        self.points: list[Metric] = []
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.is_away = False

    def write(self, points: Sequence[Metric]) -> None:
        self.is_asked.set()
        assert self.may_answer.wait(_WAIT_S)
        if self.is_away:
            raise TrackingError("no answer")
        self.points += points


def point(step: int) -> Metric:
    return Metric("loss", 1.0, step, 0)


def test_a_store_that_hangs_holds_up_nobody_and_gets_each_point_once() -> None:
    target = Target()
    spool = Spool(target.write)
    spool.add([point(0)])
    spool.push()
    assert target.is_asked.wait(_WAIT_S)
    for step in range(1, 50):  # would wait here if it were written in the foreground
        spool.add([point(step)])
        spool.push()
    assert target.points == []
    target.may_answer.set()
    spool.drain()
    assert [p.step for p in target.points] == list(range(50))


def test_points_are_kept_while_the_store_is_away() -> None:
    target = Target()
    target.is_away = True
    target.may_answer.set()
    spool = Spool(target.write)
    spool.add([point(0)])
    spool.push()
    with pytest.raises(TrackingError, match="no answer"):
        spool.drain()
    spool.add([point(1)])
    target.is_away = False
    spool.drain()
    spool.drain()
    assert [p.step for p in target.points] == [0, 1]
