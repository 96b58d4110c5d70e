"""Which process owns a run, so that a run whose process is gone can be told from a running one."""

import socket
from pathlib import Path

import psutil

from harness.config.load import Frozen

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19
"""Position of `starttime` among the fields after the command name in /proc/<pid>/stat (proc(5))."""


class Owner(Frozen):
    """A process as nothing else can be mistaken for: host, boot, process id and start time."""

    host: str
    boot_id: str
    pid: int
    started: str
    """Start time in clock ticks after boot (Linux) or in epoch seconds (elsewhere)."""


def current_owner() -> Owner:
    """This process."""
    pid = psutil.Process().pid
    return Owner(host=socket.gethostname(), boot_id=_boot_id(), pid=pid, started=_started(pid))


def is_alive(owner: Owner) -> bool | None:
    """Whether the process still runs; None when it runs on another host and cannot be asked."""
    if owner.host != socket.gethostname():
        return None
    if owner.boot_id != _boot_id():
        return False
    try:
        return _started(owner.pid) == owner.started
    except psutil.NoSuchProcess:
        return False


def _boot_id() -> str:
    if _BOOT_ID.is_file():
        return _BOOT_ID.read_text().strip()
    return str(int(psutil.boot_time()))


def _started(pid: int) -> str:
    """The start time of a process; a zombie counts as gone."""
    process = psutil.Process(pid)
    if process.status() == psutil.STATUS_ZOMBIE:
        raise psutil.NoSuchProcess(pid)
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[_START_FIELD]
    except FileNotFoundError:
        return str(process.create_time())
