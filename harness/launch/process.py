"""A task as processes on the host that runs it: watched, heard, and gone with who started them.

The command goes through `eval/supervise.py`, which ends its process group when this process ends in
whatever way. Its stdin is a pipe from us, for tasks that save a checkpoint when it closes.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

import eval as measuring
import harness
from eval.supervise import guard
from harness.launch.ports import Task
from harness.settings import TASK_ID, child_environment

_SOURCES = [str(Path(str(module.__file__)).parents[1]) for module in (harness, measuring)]
_KILL_WAIT_S = 10.0
_ORPHAN_S = 20.0
"""In which a task whose launcher is gone must have saved: after 45 s it is begun elsewhere."""
_CLUSTER = "RAY_"
"""Variables of the cluster, its token among them, which are no business of a task."""
_MOST_BYTES = 1 << 20
"""Of what is read of the output at once."""


def command_code(code: int) -> int:
    """How a command ended by the exit code of its supervisor; negative for a signal."""
    return code - 256 if 256 - code in set(signal.Signals) else code


class TaskProcess:
    """A task that runs on this host; leaving the `with` block kills it.

    Args:
        task: What to run.
        environment: Variables under those of the task: devices, threads.
    """

    def __init__(self, task: Task, environment: Mapping[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._result = tempfile.TemporaryFile()  # noqa: SIM115 - as above
        changes = {**(environment or {}), **task.environment, TASK_ID: task.id}
        changes["PYTHONPATH"] = os.pathsep.join(_SOURCES)  # what we run, wherever it was shipped to
        inherited = child_environment(**changes).items()
        self._process = subprocess.Popen(
            guard([sys.executable, "-P", *task.arguments], task.patience_s, _ORPHAN_S),
            stdin=subprocess.PIPE,
            stdout=self._result if task.result_path else self._log,
            stderr=self._log,
            cwd=task.folder,
            start_new_session=True,
            env={name: value for name, value in inherited if not name.startswith(_CLUSTER)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.close()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        code = self._process.poll()
        return None if code is None else command_code(code)

    def read_log(self, offset: int) -> bytes:
        """What it printed after so many bytes, at most a MiB."""
        return os.pread(self._log.fileno(), _MOST_BYTES, offset)

    def read_result(self, offset: int) -> bytes:
        """The same of its stdout, where that is kept apart."""
        return os.pread(self._result.fileno(), _MOST_BYTES, offset)

    def interrupt(self) -> None:
        """Asks it to save and stop, by SIGTERM; its supervisor kills it when its patience ends."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and everything that it started, in whatever process group that is."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            for process in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(_KILL_WAIT_S)

    def close(self) -> None:
        """Lets go of its pipe and its output."""
        if self._process.stdin:
            self._process.stdin.close()
        self._log.close()
        self._result.close()
