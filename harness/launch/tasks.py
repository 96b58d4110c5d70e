"""Builds tasks, and follows one to its end for a command that has nothing else to do."""

import codecs
import time
from collections.abc import Callable
from pathlib import Path

from harness.drafter.provenance import code_digest
from harness.errors import PrerequisiteError, WorkError
from harness.launch.ports import Job, Launcher, Task
from harness.settings import Settings, carried_environment
from harness.training.process import Interrupts

_LISTEN_S = 0.2
_STOPPED = 130
MOST_LOSSES = 10
"""Hosts that a task may lose: more than that, and it is the task that loses them."""


def build_task(
    name: str,
    arguments: tuple[str, ...],
    settings: Settings,
    log_path: Path,
    *,
    result_path: Path | None = None,
    num_gpus: int = 0,
    is_alone: bool = False,
) -> Task:
    """A task of this project: its folder, its store and this process's code.

    Args:
        name: What people see.
        arguments: What follows the interpreter.
        settings: Of the project.
        log_path: Takes what it prints.
        result_path: Takes its stdout, if that is to be kept apart.
        num_gpus: What it needs.
        is_alone: Whether it needs a host for itself.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    own = {
        "HARNESS_ROOT": str(settings.root_dir),
        "MLFLOW_TRACKING_URI": settings.tracking_uri,
    }
    return Task(
        name=name,
        arguments=arguments,
        folder=settings.root_dir,
        code=code_digest(),
        log_path=log_path,
        result_path=result_path,
        environment=carried_environment() | own,
        num_gpus=num_gpus,
        is_alone=is_alone,
    )


def gpus_of(launcher: Launcher, num_gpus: int) -> int:
    """The GPUs that a task takes there: as many as it asks for, or none where one will do without.

    Raises:
        PrerequisiteError: No host has as many.
    """
    if num_gpus == 0 or launcher.count_places(num_gpus):
        return num_gpus
    if num_gpus == 1 and launcher.count_places(0):
        return 0
    raise PrerequisiteError(
        f"expected a host with {num_gpus} GPUs, found none", "lower nproc, or add a host"
    )


def follow(
    launcher: Launcher,
    task: Task,
    tell: Callable[[str], None],
    settle: Callable[[Task], Task],
) -> int:
    """Runs a task to its end and returns its exit code; begun again where its host is lost.

    Ctrl-C asks it to save and stop; a second one ends it. Where it told no exit code after that,
    as one that was still waiting for room, it is 130.

    Args:
        launcher: Where it runs.
        task: What runs.
        tell: Told what it prints, as it comes.
        settle: Ends the runs that a lost process of the task left open, so that the next one goes
            on from their last checkpoint; returns what is to be launched then.

    Raises:
        WorkError: It lost one host after the other.
        PrerequisiteError: The place is not what it must be, or went away for good.
    """
    output = _Output(task.log_path)
    with Interrupts() as interrupts:
        for _ in range(MOST_LOSSES):
            job, num_asked = launcher.launch(task), 0
            while (code := job.poll()) is None:
                output.pass_on(tell)
                num_asked = _obey(interrupts, job, num_asked)
                time.sleep(_LISTEN_S)
            output.pass_on(tell, is_last=True)
            job.close()
            if interrupts.count and (job.is_lost or code < 0):
                return _STOPPED
            if not job.is_lost:
                return code
            tell(f"its host went away; {task.name} goes on elsewhere\n")
            task = settle(task)
    raise WorkError(
        f"{task.name} lost {MOST_LOSSES} hosts, one after the other",
        f"does it take them down? its output is in {task.log_path}",
    )


def _obey(interrupts: Interrupts, job: Job, num_asked: int) -> int:
    if interrupts.count > num_asked:
        job.interrupt() if interrupts.count == 1 else job.kill()
    return interrupts.count


class _Output:
    """What a task prints from now on, as text: a character may come in two pieces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def pass_on(self, tell: Callable[[str], None], *, is_last: bool = False) -> None:
        """Tells what came since; with the last piece half a character, too, as a mark."""
        piece = b""
        if self._path.exists():
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                piece = stream.read()
        self._offset += len(piece)
        if text := self._decoder.decode(piece, final=is_last):
            tell(text)
