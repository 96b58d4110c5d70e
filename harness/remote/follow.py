"""Shows what a job prints while it runs, across lines that break, and tells how it ended."""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from harness.errors import WorkError
from harness.remote.host import Host, LineError
from harness.remote.records import JobState, RemoteJob
from harness.remote.ship import job_words, read_state

_PAUSE_S = 2.0
_PATIENCE_S = 900.0
_HELD_S = 60.0
"""A try that lasted longer had reached the host: connecting may take 20 s (`host.py`). A job that
prints nothing for hours is not away."""
_CHUNK_BYTES = 1 << 16
_SSH_FAILED = 255


class Screen(NamedTuple):
    """Where output goes, and what is said of the line."""

    show: Callable[[bytes], None]
    tell: Callable[[str], None]


def follow(
    host: Host,
    job: RemoteJob,
    screen: Screen,
    offset: int = 0,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> JobState:
    """Returns when the job has ended; interrupted, the job goes on.

    Args:
        host: Where it runs.
        job: Which.
        screen: Takes what it prints.
        offset: Bytes of that which are known.
        clock: Seconds.
        sleep: Waits.

    Raises:
        LineError: The host was away for a quarter of an hour.
        WorkError: The host's side failed.
    """
    last = clock()
    while True:
        began = clock()
        code, num_bytes, said = _listen(host, job, offset, screen.show)
        offset += num_bytes
        if num_bytes or clock() - began > _HELD_S:
            last = clock()
        if code == 0:
            return read_state(host, job)
        if code not in {_SSH_FAILED, -15}:
            raise WorkError(f"{host.address}: following {job.id} exited with {code}: {said}")
        if clock() - last > _PATIENCE_S:
            raise LineError(
                f"{host.address} was away for {_PATIENCE_S / 60:.0f} min; the job may well go on",
                f"harness remote attach {job.id}",
            )
        screen.tell(f"the line to {host.address} broke; the job goes on, trying again")
        sleep(_PAUSE_S)


def _listen(
    host: Host, job: RemoteJob, offset: int, show: Callable[[bytes], None]
) -> tuple[int, int, str]:
    """Exit code of ssh, bytes that came, and what it said on stderr."""
    num_bytes = 0
    with host.opened(job_words(job, "follow", str(offset))) as process:
        output = process.stdout
        while output is not None and (piece := os.read(output.fileno(), _CHUNK_BYTES)):
            show(piece)
            num_bytes += len(piece)
        code = process.wait()
        said = process.stderr.read() if process.stderr else b""
    return code, num_bytes, said.decode(errors="replace").strip()
