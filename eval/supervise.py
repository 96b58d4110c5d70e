"""A small process between us and vLLM, so that no server outlives the one who started it.

Run as `python supervise.py PARENT_PID GRACE_S ORPHAN_GRACE_S -- COMMAND...`. Standard library
only. It stops the command when asked to (SIGTERM) and when the parent is gone, even by SIGKILL, and
then sweeps the command's whole process group. It exits with the command's exit code. vLLM's
sockets, which it never deletes when it is killed, go to a folder that is deleted here.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

_POLL_S = 0.25
_ORPHAN_GRACE_S = 3.0
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SOCKETS = "VLLM_RPC_BASE_PATH"


def guard(
    command: Sequence[str], grace_s: float, orphan_grace_s: float = _ORPHAN_GRACE_S
) -> list[str]:
    """The command line that runs `command` under this process's watch.

    Args:
        command: What to run.
        grace_s: Seconds from SIGTERM to SIGKILL when it is asked to stop.
        orphan_grace_s: The same when this process is gone; never more than `grace_s`.
    """
    own = [sys.executable, "-I", "-S", os.path.abspath(__file__)]  # noqa: PTH100 - a light import
    return [*own, str(os.getpid()), str(grace_s), str(orphan_grace_s), "--", *command]


def main(arguments: list[str]) -> int:
    """Runs the command until it ends, the parent ends, or a signal asks for the end."""
    parent_pid, command = int(arguments[0]), arguments[4:]
    grace_s, orphan_grace_s = float(arguments[1]), float(arguments[2])
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    own_pid = os.getpid()

    def prepare() -> None:
        # If this process is killed outright, the kernel kills the command at once.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Shells in the background and Ray ignore SIGINT, and their children would inherit that.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        if os.getppid() != own_pid:
            os._exit(1)

    sockets = tempfile.mkdtemp(prefix="harness-", dir=os.environ.get(_SOCKETS))
    try:
        child = subprocess.Popen(
            command,
            process_group=0,
            preexec_fn=prepare,  # noqa: PLW1509 - one thread
            env={**os.environ, _SOCKETS: sockets},
        )
        return _watch(child, parent_pid, grace_s, orphan_grace_s)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _watch(
    child: "subprocess.Popen[bytes]", parent_pid: int, grace_s: float, orphan_grace_s: float
) -> int:
    try:
        while child.poll() is None and os.getppid() == parent_pid:
            received = signal.sigtimedwait(_WATCHED, _POLL_S)
            if received and received.si_signo != signal.SIGCHLD:
                break
        _stop(child, grace_s if os.getppid() == parent_pid else min(grace_s, orphan_grace_s))
    finally:
        _kill_group(child.pid)
    return child.returncode if child.returncode is not None else 1


def _stop(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    if child.poll() is not None:
        return
    # From now on whatever the command leaves behind, in a group of its own, becomes our child.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, _POLL_S)
    _kill_group(child.pid)
    child.wait()
    while orphans := _children():
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    """Our children that the kernel lists; none where it keeps no list."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as stream:  # noqa: PTH123 - light
            return [int(pid) for pid in stream.read().split()]
    except OSError:
        return []


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
