"""What a coordinator needs of the world, named, so that tests can put their own in."""

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.settings import Settings
from harness.sweep.causes import Causes
from harness.sweep.records import Event, Trial, TrialSpec
from harness.sweep.slots import Slot
from harness.sweep.space import Point

STOP_PATIENCE_S = 180.0
"""In which a trial that was asked to stop must have saved its checkpoint."""


class Worker(Protocol):
    """A trial's process, here or elsewhere."""

    @property
    def is_lost(self) -> bool:
        """Whether its host went away, so that its end is no fault of the trial."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def interrupt(self) -> None:
        """Asks it to save and stop."""

    def kill(self) -> None:
        """Ends it now."""

    def close(self) -> None:
        """Lets go of what belonged to it."""


class Ports(NamedTuple):
    """The world of a coordinator."""

    launch: Callable[[TrialSpec, Path, Mapping[str, str]], Worker]
    end_leftover: Callable[[Path, float], bool]
    require_room: Callable[[Sequence[Point], Slot, int], None]
    """Raises PrerequisiteError when the first point, the others running, would not find room; last,
    how many of them run on its GPU."""
    num_interrupts: Callable[[], int]
    watch: Callable[[tuple[Trial, ...]], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Place(NamedTuple):
    """Where a sweep lives and runs."""

    folder: Path
    """Of the sweep; trials get folders below it."""
    settings: Settings
    slots: tuple[Slot, ...]

    def trial_dir(self, number: int) -> Path:
        """A trial's folder."""
        return self.folder / "trials" / f"{number:04d}"


class Pause(StrEnum):
    """Why a search returned."""

    DONE = "all trials are done"
    COSTS = "step costs are to be measured"
    STOPPED = "interrupted"
    FAILURES = "too many trials failed"
    TIMEOUT = "the time is up"


class Running:
    """A trial that has a process."""

    def __init__(self, spec: TrialSpec, point: Point, worker: Worker, slot: Slot) -> None:
        self.number, self.attempt = spec.number, spec.attempt
        self.point, self.worker, self.slot = point, worker, slot
        self.causes = Causes()
        self.num_events = 0
        self.is_given_up = False
        self.last: Event | None = None
