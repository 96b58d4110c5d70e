"""Measurements that share a machine: their engines start together, one at a time is measured.

A start of vLLM takes a minute or more and computes on many cores; measuring takes seconds of a
quiet machine. So whoever is ready waits until nobody starts, and who would start waits until none
is ready. Two file locks say who; the kernel frees them when a process dies.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eval.errors import SpecError
from eval.progress import ProgressFn


class MachineQueue:
    """The place of one measurement among those that name the same path.

    Args:
        path: `<path>.ready` and `<path>.busy` are locked; None: there are no others.
        progress: Told that we wait.
    """

    def __init__(self, path: Path | None, progress: ProgressFn | None = None) -> None:
        self.waited_s = 0.0
        """Seconds spent waiting for others."""
        self._path, self._progress = path, progress
        self._held: list[int] = []

    @property
    def is_shared(self) -> bool:
        """Whether there may be others."""
        return self._path is not None

    @property
    def is_ours(self) -> bool:
        """Whether we measure, and others wait."""
        return bool(self._held)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While an engine starts: begins when nobody is ready to measure or measures."""
        self.leave()
        if self._path is None:
            yield
            return
        ready = self._lock(".ready", fcntl.LOCK_EX)
        try:
            busy = self._lock(".busy", fcntl.LOCK_SH)
        finally:
            os.close(ready)
        try:
            yield
        finally:
            os.close(busy)

    def enter(self) -> None:
        """From now on we measure: waits until nobody starts an engine, or measures."""
        if self._path is not None and not self._held:
            self._held.append(self._lock(".ready", fcntl.LOCK_SH))
            try:
                self._held.append(self._lock(".busy", fcntl.LOCK_EX))
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        """Lets others measure or start, if we measured."""
        while self._held:
            os.close(self._held.pop())

    def _lock(self, suffix: str, kind: int) -> int:
        name = f"{self._path}{suffix}"
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SpecError(
                f"queue_path: expected to open {name}: {error.strerror}",
                "name a path in a folder of yours",
            ) from error
        try:
            self._wait(descriptor, kind)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _wait(self, descriptor: int, kind: int) -> None:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            began = time.monotonic()
            if self._progress:
                self._progress("waiting for other measurements on this machine", 0, 0)
            fcntl.flock(descriptor, kind)
            self.waited_s += time.monotonic() - began
