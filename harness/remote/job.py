"""The host's side of a job, asked over ssh: start it, watch it, stop it, copy its database.

Started as `python -m harness.remote.job VERB FOLDER [NUMBER or PLACES]` from the code that was
sent. The job itself is a process in a session of its own: it goes on when the line is gone, and is
found again by what it left in its folder.
"""

import contextlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from eval.supervise import guard
from harness.digests import write_atomic
from harness.drafter.gpus import read_gpus
from harness.drafter.provenance import code_digest
from harness.launch.process import command_code
from harness.remote.inputs import digest_path
from harness.remote.records import (
    ENDED_NAME,
    JOB_NAME,
    LOG_NAME,
    OWNER_NAME,
    REFUSED,
    SNAPSHOT_DIR,
    Ended,
    JobState,
    RemoteJob,
    Started,
)
from harness.settings import TASK_ID, child_environment
from harness.tracking.owner import current_owner, is_alive

_PATIENCE_S = 180.0
_POLL_S = 0.2
_CHUNK_BYTES = 1 << 16
_STORE = "MLFLOW_TRACKING_URI"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def main(verb: str, folder: Path, *rest: str) -> int:
    """Does what is asked; the exit code is 0 when that was done."""
    if verb == "follow":
        return follow(folder, int(rest[0]))
    if verb == "start":
        return start(folder, int(rest[0]))
    if verb == "count":
        return count([folder / place for place in rest])
    verbs = {"work": work, "stop": stop, "snapshot": snapshot, "status": status}
    return verbs[verb](folder)


def start(folder: Path, attempt: int) -> int:
    """Starts the job in the background; its variables come by stdin and are never written.

    It is shown as many free GPUs as it was given; where CUDA_VISIBLE_DEVICES is set, those.
    """
    job = RemoteJob.model_validate_json((folder / JOB_NAME).read_bytes())
    if code_digest() != job.code:
        sys.stderr.write(f"expected code {job.code}, found {code_digest()}: refused\n")
        return REFUSED
    try:
        (folder / f"attempt-{attempt}").touch(exist_ok=False)
    except FileExistsError:  # by a call whose answer the line swallowed
        return 0
    told: dict[str, str] = json.loads(sys.stdin.buffer.read() or b"{}")
    if job.num_gpus and _VISIBLE not in child_environment(**told):
        free = [gpu.index for gpu in read_gpus() if gpu.has_room()]
        if len(free) < job.num_gpus:
            (folder / f"attempt-{attempt}").unlink()
            sys.stderr.write(f"expected {job.num_gpus} free GPUs, found {len(free)}: not started\n")
            return 1
        told[_VISIBLE] = ",".join(free[: job.num_gpus])
    for name in (OWNER_NAME, ENDED_NAME):
        (folder / name).unlink(missing_ok=True)
    with (folder / LOG_NAME).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.remote.job", "work", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with process.stdin as pipe:  # type: ignore[union-attr]  # it is a pipe
        pipe.write(json.dumps(told).encode())
    while read_state(folder).state == "new" and process.poll() is None:
        time.sleep(_POLL_S)
    if read_state(folder).state != "new":
        return 0
    sys.stderr.write(f"it did not start; the end of {folder / LOG_NAME} says why\n")
    return 1


def work(folder: Path) -> int:
    """The job's process: runs the command, and leaves its exit code."""
    job = RemoteJob.model_validate_json((folder / JOB_NAME).read_bytes())
    told: dict[str, str] = json.loads(sys.stdin.buffer.read() or b"{}")
    environment = child_environment()
    environment.pop(_STORE, None)  # the host's own is nobody's wish
    environment |= {"HARNESS_ROOT": str(folder), TASK_ID: job.id, **told}
    command = [sys.executable, "-P", "-m", "harness", *job.arguments]
    process = subprocess.Popen(
        guard(command, _PATIENCE_S), stdin=subprocess.DEVNULL, cwd=folder, env=environment
    )

    def pass_on(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - Python's
        process.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    started = Started(owner=current_owner(), at=_now())
    write_atomic(folder / OWNER_NAME, started.model_dump_json())
    code = command_code(process.wait())
    write_atomic(folder / ENDED_NAME, Ended(code=code, at=_now()).model_dump_json())
    return code


def status(folder: Path) -> int:
    """Tells how the job stands, as JSON."""
    sys.stdout.write(read_state(folder).model_dump_json() + "\n")
    return 0


def count(places: list[Path]) -> int:
    """Tells the digest of each file or folder, a line each; an empty one where there is none."""
    for place in places:
        sys.stdout.write((digest_path(place).root if place.exists() else "") + "\n")
    return 0


def read_state(folder: Path) -> JobState:
    """How the job in a folder stands."""
    log = folder / LOG_NAME
    facts = {
        "num_log_bytes": log.stat().st_size if log.is_file() else 0,
        "num_attempts": len(list(folder.glob("attempt-*"))),
    }
    try:
        started = Started.model_validate_json((folder / OWNER_NAME).read_bytes())
    except (FileNotFoundError, ValidationError):
        return JobState(state="new", **facts)
    is_running = is_alive(started.owner)  # before the exit code is looked for
    try:
        ended = Ended.model_validate_json((folder / ENDED_NAME).read_bytes())
    except (FileNotFoundError, ValidationError):
        state = JobState(state="running" if is_running else "lost", **facts)
    else:
        state = JobState(state="ended", code=ended.code, **facts)
    return state.model_copy(update={"started_at": started.at})


def follow(folder: Path, offset: int) -> int:
    """Writes what the job prints, from a byte on, until it ends or nobody listens any more."""
    with (folder / LOG_NAME).open("rb") as log:
        log.seek(offset)
        while True:
            is_over = read_state(folder).state in {"ended", "lost"}
            while piece := log.read(_CHUNK_BYTES):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            if is_over:
                return 0
            if select.select([sys.stdin], [], [], _POLL_S)[0] and not os.read(0, 1):
                return 1


def stop(folder: Path) -> int:
    """Asks the job to save and stop; whoever follows it sees how it ends."""
    try:
        started = Started.model_validate_json((folder / OWNER_NAME).read_bytes())
    except FileNotFoundError:
        sys.stderr.write("it was not started\n")
        return 1
    if is_alive(started.owner):
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.kill(started.owner.pid, signal.SIGINT)
    return 0


def snapshot(folder: Path) -> int:
    """Copies the database as it is at one moment, while the job may go on writing."""
    source, target = folder / "mlruns" / "mlflow.db", folder / SNAPSHOT_DIR / "mlflow.db"
    for place in (source.parent, target.parent):  # a job that made no store has neither
        place.mkdir(mode=0o700, exist_ok=True)
    target.unlink(missing_ok=True)
    if source.is_file():
        with (
            closing(sqlite3.connect(source, timeout=60)) as here,
            closing(sqlite3.connect(target)) as there,
        ):
            here.backup(there)
    return 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).absolute(), *sys.argv[3:]))
