"""One coordinator a sweep, and how another tells that it is gone, whatever the clocks say.

On one host the kernel's file lock decides, and process ids with boot and start time. From another
host only a counter can be watched: it stands still, by our own monotonic clock, or it does not.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import ValidationError

from harness.digests import write_atomic
from harness.errors import ConfigError
from harness.sweep.study import SweepStudy
from harness.tracking.owner import Owner, current_owner, is_alive

_LOCK_NAME = "coordinator.lock"
_OWNER_NAME = "coordinator.json"
_ATTR = "harness.coordinator"
_BEAT_S = 15.0
_PATIENCE_S = 3 * _BEAT_S


@contextmanager
def coordinator_lock(folder: Path) -> Iterator[None]:
    """Holds the sweep for this process.

    Raises:
        ConfigError: Another process of this host coordinates it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK_NAME)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        owner = read_coordinator(folder)
        who = f"process {owner.pid}" if owner else "another process"
        raise ConfigError(
            f"{who} coordinates the sweep {folder.name!r}",
            f"watch it with harness sweep status {folder.name}, or stop it with harness sweep stop",
        ) from error
    try:
        write_atomic(folder / _OWNER_NAME, current_owner().model_dump_json())
        yield
    finally:
        (folder / _OWNER_NAME).unlink(missing_ok=True)
        lock.release()


def read_coordinator(folder: Path) -> Owner | None:
    """The living coordinator of a sweep on this host; None when there is none."""
    try:
        owner = Owner.model_validate_json((folder / _OWNER_NAME).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return owner if is_alive(owner) else None


class Heartbeat:
    """The coordinator's sign of life in the study: a counter, never a time."""

    def __init__(
        self,
        study: SweepStudy,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._study, self._clock, self._sleep = study, clock, sleep
        self._owner = current_owner().model_dump()
        self._count = 0
        self._next = clock()

    def take_over(self) -> None:
        """Waits until a coordinator of another host is seen to be gone.

        Raises:
            ConfigError: It lives.
        """
        held = self._study.fresh_attr(_ATTR)
        if not _is_elsewhere(held):
            return
        deadline = self._clock() + _PATIENCE_S
        while self._clock() < deadline:
            self._sleep(1.0)
            if self._study.fresh_attr(_ATTR) != held:
                name, host = self._study.config.name, held["owner"]["host"]
                raise ConfigError(
                    f"a coordinator on {host} works on {name!r}",
                    "stop it there, or wait until it is done",
                )

    def beat(self) -> None:
        """Counts on when it is time."""
        if self._clock() >= self._next:
            self._count += 1
            self._next = self._clock() + _BEAT_S
            self._study.set_attr(_ATTR, {"owner": self._owner, "count": self._count})

    def end(self) -> None:
        """Says that nobody coordinates any more, if it was us."""
        if self._count:
            self._study.set_attr(_ATTR, None)


def _is_elsewhere(held: Any) -> bool:
    try:
        return held is not None and is_alive(Owner.model_validate(held["owner"])) is None
    except (ValidationError, KeyError, TypeError):
        return False
