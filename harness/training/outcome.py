"""How a training ended, in the words of the store: from the exit code and the child's last line."""

import re
from pathlib import Path
from typing import NamedTuple

from harness.tracking.records import RunStatus
from harness.training.messages import Ended
from harness.training.process import signal_name

_LOG_TAIL_BYTES = 8192
_GANG_TABLE = "Failures:"
"""How the table begins that torchrun ends with when a process of the gang failed."""
_RANK_KILLED = re.compile(r"Signal \d+ \((?!SIGTERM)(SIG\w+)\) received by PID \d+")
"""What it says there of one that a signal ended; SIGTERM is its own, for those that are left."""


class Outcome(NamedTuple):
    """A final status and, unless all went well, the reason."""

    status: RunStatus
    reason: str | None


def judge(returncode: int, ended: Ended | None, num_interrupts: int, log_path: Path) -> Outcome:
    """The final status of a run.

    Args:
        returncode: Of the child; negative for the signal that ended it.
        ended: Its last message, None when it had no time for one.
        num_interrupts: How often we were asked to stop.
        log_path: What it printed.
    """
    if ended and ended.outcome == "finished" and returncode == 0:
        return Outcome(RunStatus.FINISHED, None)
    if num_interrupts or (ended and ended.outcome == "stopped"):
        where = f" after step {ended.step}" if ended else ""
        return Outcome(RunStatus.KILLED, f"interrupted{where}")
    if ended and ended.outcome == "diverged":
        return Outcome(RunStatus.FAILED, f"diverged: {ended.detail}")
    if ended and ended.outcome == "refused":
        return Outcome(RunStatus.FAILED, f"refused: {ended.detail}")
    tail = _read_tail(log_path)
    _, table, failures = tail.rpartition(_GANG_TABLE)
    of_gang = _RANK_KILLED.search(failures) if table else None
    if returncode < 0 or of_gang:
        name = of_gang[1] if of_gang else signal_name(returncode)
        why = ", as Linux does when memory runs out" if name == "SIGKILL" else ""
        return Outcome(RunStatus.FAILED, f"the worker was killed by {name}{why}")
    return Outcome(RunStatus.FAILED, f"the worker exited with {returncode}: {last_line(log_path)}")


def last_line(log_path: Path) -> str:
    """The last line that a process printed: the exception, when it ended with one.

    torchrun ends with a table of the process that failed first, its exception last, and a rule.
    """
    lines = [line.strip() for line in _read_tail(log_path).splitlines() if line.strip(" =-\t")]
    return lines[-1] if lines else "it printed nothing"


def _read_tail(log_path: Path) -> str:
    if not log_path.is_file():
        return ""
    return log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
