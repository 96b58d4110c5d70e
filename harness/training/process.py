"""The child as a process: its own group, its lines, its resources, and no life after ours.

The one place of this room that starts processes.
"""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil

from harness.drafter.gpus import ask_driver
from harness.settings import child_environment

_WORKER = "harness.training.worker"
_GANG = "harness.training.worker.torchrun"
_READ_BYTES = 1 << 16
_KILL_WAIT_S = 10.0
_SAME_WISH_S = 1.0
_GPU_TIMEOUT_S = 5.0
_GPU_QUERY = ("utilization.gpu", "memory.used")
_MIB = 1 << 20


class WorkerProcess:
    """`python -m harness.training.worker` on one job, alone or as a gang under torchrun.

    Leaving the `with` block kills it and all that it started.
    """

    def __init__(
        self, job_path: Path, log_path: Path, environment: Mapping[str, str], nproc: int = 1
    ) -> None:
        """Starts the child.

        Args:
            job_path: The TrainJob to run.
            log_path: Takes the child's stdout and stderr, appended.
            environment: Variables to set on top of our own.
            nproc: Processes that train together; above 1 the child is their torchrun.
        """
        self._pipe, theirs = os.pipe()
        self._rest = b""
        self._is_gang = nproc > 1
        words = [str(job_path), str(theirs), *((str(nproc),) if self._is_gang else ())]
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _GANG if self._is_gang else _WORKER, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs,),
                    start_new_session=True,
                    env=child_environment(**environment),
                )
        finally:
            os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._pipe)

    @property
    def pid(self) -> int:
        """The child's process id, which is also its group's."""
        return self._process.pid

    def read_lines(self, timeout_s: float) -> list[bytes] | None:
        """Whole lines that came within the time; None when the child will say no more."""
        ready, _, _ = select.select([self._pipe], [], [], timeout_s)
        if not ready:
            return []
        piece = os.read(self._pipe, _READ_BYTES)
        if not piece:
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return lines

    def interrupt(self) -> None:
        """Asks the child to save a checkpoint and stop.

        A gang is asked process by process: torchrun would give it 30 s and then kill it.
        """
        if self._process.poll() is not None:
            return
        if not self._is_gang:
            self._process.send_signal(signal.SIGINT)
            return
        ranks = self._family(is_deep=False)
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.send_signal(signal.SIGINT)
        if not ranks:  # torchrun has not started them yet
            self.kill()

    def kill(self) -> None:
        """Ends the child and everything that it started, now."""
        family = self._family(is_deep=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in family:  # torchrun's have groups of their own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(_KILL_WAIT_S)

    def _family(self, *, is_deep: bool) -> list[psutil.Process]:
        try:
            return list(psutil.Process(self.pid).children(recursive=is_deep))
        except psutil.NoSuchProcess:
            return []

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, negative for the signal that ended it; None when it has not ended."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


class Interrupts:
    """Counts wishes to stop instead of raising, so that no half-read message is lost.

    A wish is a Ctrl-C or a SIGTERM, and both of them where they come within a second: of the death
    of its launcher a trial hears twice, from its supervisor and from the end of its pipe. Outside
    the main thread, where Python takes no handlers, it counts nothing.
    """

    def __init__(self) -> None:
        self.count = 0
        self._heard_at = dict.fromkeys((signal.SIGINT, signal.SIGTERM), -math.inf)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._heard_at:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's
        now, heard = time.monotonic(), signal.Signals(number)
        others = [at for other, at in self._heard_at.items() if other is not heard]
        self.count += now - max(others) >= _SAME_WISH_S
        self._heard_at[heard] = now


class ResourceMeter:
    """What a process and its children take: CPU in percent of one core, memory, GPUs."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._seen: dict[int, psutil.Process] = {}
        self._has_gpu = Path("/proc/driver/nvidia").is_dir()

    def sample(self) -> dict[str, float]:
        """Figures of now; empty when the process is gone. CPU is since the sample before."""
        try:
            family = [self._root, *self._root.children(recursive=True)]
            self._seen = {p.pid: self._seen.get(p.pid, p) for p in family}
            cpu = sum(process.cpu_percent(None) for process in self._seen.values())
            rss = sum(process.memory_info().rss for process in self._seen.values())
        except psutil.Error:
            return {}
        memory = psutil.virtual_memory()
        figures = {
            "cpu_percent": cpu,
            "rss_bytes": float(rss),
            "machine_cpu_percent": psutil.cpu_percent(None),
            "machine_memory_percent": memory.percent,
        }
        return figures | self._sample_gpus()

    def _sample_gpus(self) -> dict[str, float]:
        if not self._has_gpu:
            return {}
        rows = ask_driver("--query-gpu", _GPU_QUERY, timeout_s=_GPU_TIMEOUT_S)
        self._has_gpu = bool(rows)
        return gpu_figures(rows)


def gpu_figures(rows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Figures per GPU from its percent and MiB in use; `[N/A]` is left out."""
    figures: dict[str, float] = {}
    for index, (busy, used) in enumerate(rows):
        if busy.isdecimal():
            figures[f"gpu{index}_percent"] = float(busy)
        if used.isdecimal():
            figures[f"gpu{index}_memory_bytes"] = float(used) * _MIB
    return figures


def signal_name(returncode: int) -> str:
    """The name of the signal behind a negative exit code."""
    return signal.Signals(-returncode).name
