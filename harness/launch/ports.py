"""What is run elsewhere and what becomes of it: a task, its job, and the launcher between them."""

import uuid
from pathlib import Path
from typing import Protocol

from pydantic import Field

from harness.config.load import Frozen


class Task(Frozen):
    """One command of harness, and what it needs while it runs.

    It runs in the project folder, which every host sees at the same path, with the code whose
    digest it names, in a process group of its own that ends with whoever started it.
    """

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Stands on every run that it opens, so that one that is lost can be closed."""
    name: str
    arguments: tuple[str, ...]
    """What follows the interpreter: `-m harness.sweep.trial SPEC`."""
    folder: Path
    """The project folder."""
    code: str
    """Digest of the code that is to run (`provenance.code_digest`); a host with another refuses."""
    log_path: Path
    """Takes what the task prints, appended, on the side of whoever launched it."""
    result_path: Path | None = None
    """Takes its stdout; None: that goes with the log."""
    environment: dict[str, str] = Field(default_factory=dict, repr=False)
    """On top of what the host sets. May hold secrets: it is never logged nor recorded."""
    num_gpus: int = 0
    is_alone: bool = False
    """Takes a whole host, so that nothing else of the cluster disturbs its timings."""
    patience_s: float = 180.0
    """In which it must have stopped after it was asked to; then it is killed."""


class Job(Protocol):
    """A task that was launched. It is what a sweep calls a worker."""

    @property
    def is_lost(self) -> bool:
        """Whether it ended because its host or cluster went away, which is no fault of its own."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it waits or runs.

        Raises:
            PrerequisiteError: Its host has other code, or the cluster did not come back.
        """

    def interrupt(self) -> None:
        """Asks it to save and stop."""

    def kill(self) -> None:
        """Ends it now, and all that it started."""

    def close(self) -> None:
        """Lets go of what belonged to it."""


class Launcher(Protocol):
    """A place that runs tasks."""

    def count_places(self, num_gpus: int) -> int:
        """How many tasks of so many GPUs run at once; 0 GPUs: tasks that need a processor only.

        Raises:
            PrerequisiteError: The place cannot be reached, or lets nobody in without a token.
        """

    def launch(self, task: Task) -> Job:
        """Hands a task over; returns at once, the task may have to wait for room."""

    def close(self) -> None:
        """Ends what still runs, and lets go of the place."""
