"""The side of a Ray host: an actor that says what the host is, and runs one task after another.

Ray ships the code to it; the digest is taken here once more, of what Python really imported.
"""

import os
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

from harness.drafter.provenance import code_digest, package_versions
from harness.launch.hosts import HostFacts
from harness.launch.ports import Task
from harness.launch.process import TaskProcess

SILENCE_S = 20.0
"""After which a task is stopped that is looked at twenty times a second."""
_WATCH_S = 1.0


class Seen(NamedTuple):
    """A task at a glance."""

    code: int | None
    log: bytes
    result: bytes
    is_left: bool
    """Whether it was stopped because nobody looked at it."""


class Place:
    """A share of a host."""

    def __init__(self) -> None:
        self._process: TaskProcess | None = None
        self._is_left = False
        self._looked_at = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def describe(self, marker: Path) -> HostFacts:
        """What this host is.

        Args:
            marker: A file that was just written into the project folder.
        """
        sees_folder = marker.is_file()
        return HostFacts(socket.gethostname(), code_digest(), package_versions(), sees_folder)

    def start(self, task: Task) -> None:
        """Starts a task; the one before it is over."""
        self.end()
        self._is_left, self._looked_at = False, time.monotonic()
        self._process = TaskProcess(task)

    def look(self, log_offset: int, result_offset: int) -> Seen:
        """The exit code, and what was printed after so many bytes.

        The code is told last, when all that was printed has been told.
        """
        if self._process is None:
            raise RuntimeError("no task was started")
        self._looked_at = time.monotonic()
        code = self._process.poll()  # before the output is read: it is then all there
        log, result = self._process.read_log(log_offset), self._process.read_result(result_offset)
        return Seen(None if log or result else code, log, result, self._is_left)

    def stop(self, is_now: bool) -> None:  # noqa: FBT001 - called through Ray
        """Asks the task to save and stop, or ends it and all that it started."""
        if self._process is not None:
            self._process.kill() if is_now else self._process.interrupt()

    def end(self) -> None:
        """Ends what is left of the last task."""
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None

    def _watch(self) -> None:
        """Stops a task that nobody looks at: whoever launched it cannot reach us, or is gone.

        The same where the raylet that started us was killed; Ray does not always notice.
        """
        raylet = os.getppid()
        while True:
            time.sleep(_WATCH_S)
            process = self._process
            is_silent = time.monotonic() - self._looked_at > SILENCE_S
            if process is not None and (is_silent or os.getppid() != raylet):
                self._is_left = True
                process.interrupt()
