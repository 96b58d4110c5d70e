"""Started as `python -m harness.training.worker JOB FD`, FD being the pipe to the parent."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_INTERRUPTED = 130


def main(job_path: str, descriptor: str) -> int:
    """Runs the job; see `session.run_job` for the exit codes."""
    die_with_parent()
    # Imported here: torch and speculators take 10-20 s, in which the parent may already die.
    from harness.training.worker.session import run_job  # noqa: PLC0415

    return run_job(job_path, int(descriptor))


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent is gone, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
