"""Why a trial failed, in one word: from the error it ended with and what the kernel counted."""

import errno
import re
import shutil
import signal
from pathlib import Path

from harness.errors import CheckError, TrackingError
from harness.sweep.records import Reason

_VMSTAT = Path("/proc/vmstat")
_OOM = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|can't allocate memory|Cannot allocate memory",
    re.IGNORECASE,
)
_NAN = re.compile(r"diverged|not finite|\bnan\b", re.IGNORECASE)
_DISK = re.compile(
    r"No space left|Disk quota exceeded|database or disk is full|"
    r"inline_container\.cc.*unexpected pos|file write failed",
    re.IGNORECASE,
)
"""The last two are all that torch.save says of a full disk."""
_LEAST_FREE_BYTES = 1 << 20
_KILLED = re.compile(r"killed by SIG|exited with -\d+")
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Causes:
    """Classifies failures; remembers how often the kernel had killed for memory at the start.

    Args:
        folder: Where the training writes, its log too: when that disk is full, the log ends before
            it says so.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._num_kills = count_oom_kills()

    def classify(self, error: BaseException) -> Reason:
        """The reason behind an error of a training."""
        text = f"{type(error).__name__}: {error}"
        is_full = isinstance(error, OSError) and error.errno in _FULL
        signs: tuple[tuple[object, Reason], ...] = (
            (is_full, Reason.DISK),
            (isinstance(error, MemoryError) or _OOM.search(text), Reason.OOM),
            (_DISK.search(text), Reason.DISK),
            (_KILLED.search(text) and self._was_oom_killed(), Reason.OOM),
            (_KILLED.search(text), Reason.KILLED),
            (_NAN.search(text), Reason.NAN),
            (isinstance(error, CheckError), Reason.REFUSED),
            (isinstance(error, TrackingError), Reason.STORE),
            (self._is_full(), Reason.DISK),
        )
        return next((reason for is_seen, reason in signs if is_seen), Reason.ERROR)

    def of_exit(self, code: int) -> tuple[Reason, str]:
        """The reason and its text for a process that ended without a word."""
        if code < 0:
            name = signal.Signals(-code).name
            reason = Reason.OOM if self._was_oom_killed() else Reason.KILLED
            return reason, f"its process was killed by {name}"
        return Reason.KILLED, f"its process ended with exit code {code} and told nothing"

    def _is_full(self) -> bool:
        folder = self._folder
        return folder is not None and shutil.disk_usage(folder).free < _LEAST_FREE_BYTES

    def _was_oom_killed(self) -> bool:
        return count_oom_kills() > self._num_kills


def count_oom_kills() -> int:
    """How often this kernel killed a process for memory since it was booted; 0 if it won't say."""
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split() for line in lines)
    return int(counts.get("oom_kill", 0))
