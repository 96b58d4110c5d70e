"""What a command takes: seconds of the wall clock and of processors, of all processes below it."""

import ctypes
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

OTHER = "other"
"""What belongs to no label."""
_POLL_S = 0.5
_SAVE_S = 5.0
_REAP_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36


class Cost(NamedTuple):
    """Seconds of the wall clock and of processors."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: Sequence[float]) -> "Cost":
        """Both together."""
        return Cost(self.wall_s + other[0], self.cpu_s + other[1])

    def less(self, other: Sequence[float]) -> "Cost":
        """What is left without the other."""
        return Cost(self.wall_s - other[0], self.cpu_s - other[1])

    def text(self) -> str:
        """Both, in whole seconds."""
        return f"{self.wall_s:6.0f} s {self.cpu_s:6.0f} s CPU"


class Meter:
    """Runs one command and counts what it and all below it take.

    Args:
        labels: Pattern of a command line to the label of that process and of all below it; a group
            of the pattern is put into the label.
        busiest: The label that takes over what is without one while it is there.
    """

    def __init__(
        self, labels: Sequence[tuple[re.Pattern[str], str]] = (), busiest: str = OTHER
    ) -> None:
        # Whoever loses its parent below us becomes our child, so that its seconds are counted.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.whole = Cost()
        self._labels, self._busiest = labels, busiest
        self._last: dict[tuple[int, float], float] = {}
        self._by: dict[str, Cost] = defaultdict(Cost)

    def run(
        self,
        command: Sequence[str],
        log_path: Path,
        variables: Mapping[str, str],
        save: Callable[[], None] = lambda: None,
    ) -> str:
        """Standard output of the command; `variables` are put into its environment.

        `save` is called every few seconds while it runs.

        Raises:
            SystemExit: The command failed.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        used, began = _children_s(), time.monotonic()
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(is_over, began, save), daemon=True)
        with log_path.open("a") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **variables},
            )
            watcher.start()
            try:
                output, _ = process.communicate()
            finally:
                is_over.set()
                watcher.join()
        _reap()
        self.whole = Cost(time.monotonic() - began, _children_s() - used)
        if process.returncode:
            sys.exit(f"exit code {process.returncode} of {' '.join(command)}; see {log_path}")
        return output

    def by_label(self) -> dict[str, Cost]:
        """Seconds by label; up to half a second of each process is missing.

        Labels that run at once share the seconds of the wall clock equally.
        """
        return dict(self._by)

    def _watch(self, is_over: threading.Event, began: float, save: Callable[[], None]) -> None:
        last = saved = began
        while not is_over.wait(_POLL_S):
            now = time.monotonic()
            self._look(now - last)
            last = now
            cpu_s = sum(cost.cpu_s for cost in self._by.values())
            self.whole = Cost(now - began, cpu_s)
            if now - saved >= _SAVE_S:
                saved = now
                save()

    def _look(self, elapsed_s: float) -> None:
        family = list(self._family(psutil.Process(), OTHER))
        seen = {label for _, label in family}
        rest = self._busiest if self._busiest in seen else OTHER
        for process, label in family:
            try:
                key, times = (process.pid, process.create_time()), process.cpu_times()
            except psutil.Error:
                continue
            cpu_s = times.user + times.system
            own = rest if label == OTHER else label
            self._by[own] = self._by[own].plus((0.0, cpu_s - self._last.get(key, 0.0)))
            self._last[key] = cpu_s
        at_once = (seen - {OTHER}) or {OTHER}
        for label in at_once:
            self._by[label] = self._by[label].plus((elapsed_s / len(at_once), 0.0))

    def _family(self, process: psutil.Process, label: str) -> Iterator[tuple[psutil.Process, str]]:
        try:
            children = process.children()
        except psutil.Error:
            return
        for child in children:
            try:
                own = self._label(child, label)
            except psutil.Error:
                continue
            yield child, own
            yield from self._family(child, own)

    def _label(self, process: psutil.Process, of_parent: str) -> str:
        if of_parent != OTHER:
            return of_parent
        line = " ".join(process.cmdline())
        for pattern, label in self._labels:
            if match := pattern.search(line):
                return label.format(*match.groups())
        return OTHER


def _reap() -> None:
    """Waits for those whose parents are gone, not for ever."""
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_POLL_S)
        except ChildProcessError:
            return


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
