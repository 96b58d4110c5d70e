"""Work that dies by SIGKILL before any chosen change that it makes to a folder."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def run_killed_at(number: int, folder: Path, work: Callable[[], object]) -> bool:
    """Runs work in a fork, which is killed before its change of that number; the first is 0.

    Returns:
        Whether it was killed: else it came to its end with fewer changes.

    Raises:
        AssertionError: It failed in another way.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _die_at(number, folder)
        try:
            work()
        except BaseException:  # noqa: BLE001 - a fork must not run the rest of pytest
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert is_killed or status == 0, f"the work ended with status {status}"
    return is_killed


def _die_at(number: int, folder: Path) -> None:
    prefix, done = str(folder), 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        is_writing = event == "open" and bool(_flags(arguments) & (os.O_WRONLY | os.O_RDWR))
        if (event in _CHANGES or is_writing) and str(arguments[0]).startswith(prefix):
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1

    sys.addaudithook(watch)


def _flags(arguments: tuple[object, ...]) -> int:
    flags = arguments[2]
    return flags if isinstance(flags, int) else 0
