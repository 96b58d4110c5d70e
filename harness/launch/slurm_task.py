"""A task inside a job of Slurm: run, its output put where the launcher reads it, stopped by a file.

The launcher is known by a file of the shared project folder that it keeps changing; when that
rests, it is gone, and the task saves and ends.
"""

import contextlib
import signal
import time
from pathlib import Path
from types import FrameType

import psutil

from harness.config.load import Frozen
from harness.drafter.provenance import code_digest
from harness.launch.ports import Task
from harness.launch.process import TaskProcess

QUIET_S = 120.0
"""Without a sign of the launcher: several of its signs, and a shared folder that is slow."""
_POLL_S = 0.5


class Ended(Frozen):
    """What became of a task."""

    code: int
    is_lost: bool = False
    """It was not asked to stop by its launcher: Slurm took the host back, as its time was up or
    another job goes before, or a launcher that lives could not be heard."""
    refusal: str | None = None
    """Why the host did not run it."""


def stop_path(folder: Path, task_id: str) -> Path:
    """The file whose being there asks a task to stop."""
    return folder / f"{task_id}.stop"


def run_task(text: str, folder: Path, sign: Path, quiet_s: float = QUIET_S) -> str:
    """Runs a task to its end; called by submitit on the host that Slurm chose.

    Args:
        text: The Task as JSON, without its environment, which is this process's already.
        folder: Where the wish to stop it would lie.
        sign: The file that its launcher keeps changing.
        quiet_s: How long the launcher may show no sign.

    Returns:
        Its Ended as JSON.
    """
    task = Task.model_validate_json(text)
    if code_digest() != task.code:
        why = f"this host has code {code_digest()}, expected {task.code}"
        return Ended(code=1, refusal=why).model_dump_json()
    taken = _Taken()
    with TaskProcess(task) as process:
        output = _Output(process, task)
        launcher = _Sign(sign, quiet_s)
        stop, is_asked, is_lost = stop_path(folder, task.id), False, False
        family: list[psutil.Process] = []
        while (code := process.poll()) is None:
            output.pass_on()
            if not is_asked and (stop.exists() or taken.is_so or launcher.is_gone()):
                is_asked, is_lost = True, not stop.exists()
                family = psutil.Process().children(recursive=True)
                process.interrupt()
            time.sleep(_POLL_S)
        output.pass_on()
    for left in family:  # in groups of their own, out of their supervisor's reach
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    is_lost |= taken.is_so and not is_asked
    return Ended(code=code, is_lost=is_lost and code != 0).model_dump_json()


class _Taken:
    """Notes the signals by which Slurm says that the host is taken back soon.

    They take the place of submitit's: SIGUSR2 had the job begun again, SIGTERM, all that is said
    to a job that another one goes before, was not heeded.
    """

    def __init__(self) -> None:
        self.is_so = False
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's
        self.is_so = True


class _Sign:
    """Whether the launcher's file changes, by this host's own clock."""

    def __init__(self, path: Path, quiet_s: float) -> None:
        self._path, self._quiet_s = path, quiet_s
        self._last, self._since = b"", time.monotonic()

    def is_gone(self) -> bool:
        try:
            now = self._path.read_bytes()
        except OSError:
            now = self._last
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        return time.monotonic() - self._since > self._quiet_s


class _Output:
    """Appends what a process printed to the files of its task."""

    def __init__(self, process: TaskProcess, task: Task) -> None:
        self._sources = [(process.read_log, task.log_path)]
        if task.result_path:
            self._sources.append((process.read_result, task.result_path))
        self._offsets = [0 for _ in self._sources]

    def pass_on(self) -> None:
        for index, (read, path) in enumerate(self._sources):
            while piece := read(self._offsets[index]):
                with path.open("ab") as stream:
                    stream.write(piece)
                self._offsets[index] += len(piece)
