"""The side of a Ray host: an actor that says what the host is, and runs one task after another.

Ray ships the code to it; the digest is taken here once more, of what Python really imported.
"""

import socket
from pathlib import Path
from typing import NamedTuple

from harness.drafter.provenance import code_digest, package_versions
from harness.launch.hosts import HostFacts
from harness.launch.ports import Task
from harness.launch.process import TaskProcess


class Seen(NamedTuple):
    """A task at a glance."""

    code: int | None
    log: bytes
    result: bytes


class Place:
    """A share of a host."""

    def __init__(self) -> None:
        self._process: TaskProcess | None = None

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
        self._process = TaskProcess(task)

    def look(self, log_offset: int, result_offset: int) -> Seen:
        """The exit code, and what was printed after so many bytes.

        The code is told last, when all that was printed has been told.
        """
        if self._process is None:
            raise RuntimeError("no task was started")
        code = self._process.poll()  # before the output is read: it is then all there
        log, result = self._process.read_log(log_offset), self._process.read_result(result_offset)
        return Seen(None if log or result else code, log, result)

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
