"""Started as `python -m harness.training.worker JOB FD`, FD being the pipe to the parent.

In a gang FD is one of torchrun's, and a third word is the inode of the pipe behind it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_INTERRUPTED = 130
_EXIT_ORPHAN = 1


def main(job_path: str, descriptor: str, inode: str | None = None) -> int:
    """Runs the job; see `session.run_job` for the exit codes."""
    die_with_parent()
    pipe = int(descriptor) if inode is None else open_pipe(os.getppid(), descriptor, inode)
    # Imported here: torch and speculators take 10-20 s, in which the parent may already die.
    from harness.training.worker.session import run_in_gang, run_job  # noqa: PLC0415

    return run_job(job_path, pipe) if inode is None else run_in_gang(job_path, pipe)


def open_pipe(pid: int, descriptor: str, inode: str) -> int:
    """A pipe that another process holds, opened for writing.

    Raises:
        SystemExit: It holds no such pipe: the parent died before it could take this process along.
    """
    try:
        pipe = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_WRONLY)
    except OSError:
        sys.exit(_EXIT_ORPHAN)
    if str(os.fstat(pipe).st_ino) != inode:
        sys.exit(_EXIT_ORPHAN)
    return pipe


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent is gone, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
