"""A trial as a process: its own group, folder and log, its cores or GPU, and no life after ours.

The child holds the reading end of a pipe from us. When we are gone, however that ended, the pipe
says so, and the child saves a checkpoint, closes its run and ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from pydantic import ValidationError

from harness.digests import write_atomic
from harness.settings import child_environment
from harness.sweep.records import LOG_NAME, OWNER_NAME, SPEC_NAME, TrialSpec
from harness.tracking.owner import Owner, is_alive

TRIAL_MODULE = "harness.sweep.trial"
_KILL_WAIT_S = 10.0
_POLL_S = 0.2


class TrialProcess:
    """`python -m harness.sweep.trial` on one attempt of one trial.

    Args:
        spec: What to do; written into the folder.
        folder: Of the trial. Takes spec, events and the log, which is appended to.
        environment: Variables on top of our own: threads, the visible GPU.
    """

    is_lost = False
    """Where it runs, we run."""

    def __init__(self, spec: TrialSpec, folder: Path, environment: Mapping[str, str]) -> None:
        write_atomic(folder / SPEC_NAME, spec.model_dump_json(indent=1))
        with (folder / LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", TRIAL_MODULE, str(folder / SPEC_NAME)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=child_environment(**environment),
            )

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def interrupt(self) -> None:
        """Asks it to save a checkpoint and stop."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends it and its group now; the trainer below it dies with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_KILL_WAIT_S)
        self.close()

    def close(self) -> None:
        """Lets go of the pipe of a process that ended."""
        if self._process.stdin:
            self._process.stdin.close()


def end_leftover(folder: Path, patience_s: float) -> bool:
    """Ends the process of a coordinator that is gone: asked first, killed when it does not stop.

    Args:
        folder: Of the trial.
        patience_s: How long it may take to save a checkpoint.

    Returns:
        Whether there was one.
    """
    owner = read_owner(folder)
    if owner is None or not is_alive(owner):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(owner.pid, signal.SIGINT)
    deadline = time.monotonic() + patience_s
    while is_alive(owner):
        if time.monotonic() >= deadline:
            _kill_family(owner.pid)
        time.sleep(_POLL_S)
    return True


def read_owner(folder: Path) -> Owner | None:
    """The process that last worked in a trial's folder."""
    try:
        return Owner.model_validate_json((folder / OWNER_NAME).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _kill_family(pid: int) -> None:
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
