"""Started as `python -m harness.training.worker.torchrun JOB FD N`: N workers on one job.

torchrun lets them find each other and ends them all when one fails. It gives them no descriptors,
so each opens our pipe through this process (`worker/__main__.py`).
"""

import os
import sys

from harness.training.worker.__main__ import die_with_parent

_WORKER = "harness.training.worker"


def main(job_path: str, descriptor: str, nproc: str) -> None:
    """Runs the gang to its end; torchrun's exit code is 0 when each of them has 0."""
    die_with_parent()
    # Imported here: torch takes seconds, in which the parent may already die.
    from torch.distributed.run import main as torchrun  # noqa: PLC0415

    inode = str(os.fstat(int(descriptor)).st_ino)
    torchrun(
        [
            *("--standalone", f"--nproc-per-node={nproc}", "--monitor-interval=0.2"),
            *("--no-python", sys.executable, "-P", "-m", _WORKER, job_path, descriptor, inode),
        ]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
