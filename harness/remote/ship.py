"""Sends code, inputs and the job's own files to a host, each in a folder named by its digest.

What lies there under a digest is compared and, where it differs, replaced before it is used; the
host then counts again, and refuses what is not what it was called.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import harness
from eval.progress import ProgressFn
from harness.digests import write_atomic
from harness.errors import CheckError
from harness.remote.host import CommandError, Host
from harness.remote.inputs import INPUTS_DIR, Cargo, Input
from harness.remote.records import JOB_NAME, REFUSED, JobState, RemoteJob

_CODE = ("harness", "eval")
_CODE_FLAGS = ("--checksum", "--delete", "--exclude=__pycache__", "--exclude=*.pyc")
_TOOL = 'cd -- "$1" && PYTHONPATH="$PWD/code/$2" && export PYTHONPATH && shift 2 && exec "$@"'


def ask_job(host: Host, job: RemoteJob, verb: str, *rest: str, told: bytes = b"") -> bytes:
    """What the host's side of a job answers (`harness.remote.job`)."""
    return host.run_patiently(job_words(job, verb, *rest), told)


def job_words(job: RemoteJob, verb: str, *rest: str, place: str | None = None) -> tuple[str, ...]:
    """The command that asks it, of the job's folder or of another place below the root."""
    words = ("-m", "harness.remote.job", verb, place or f"jobs/{job.id}", *rest)
    return ("sh", "-c", _TOOL, "sh", job.root, job.code, job.python, "-P", *words)


def read_state(host: Host, job: RemoteJob) -> JobState:
    """How a job stands."""
    return JobState.model_validate_json(ask_job(host, job, "status"))


def send(host: Host, job: RemoteJob, cargo: Cargo, staging: Path, progress: ProgressFn) -> None:
    """Makes everything ready on the host; nothing is started.

    Args:
        host: Where.
        job: What is to run.
        cargo: What it names.
        staging: Folder of this machine for the job's own files.
        progress: Told what is under way.

    Raises:
        CheckError: What arrived is not what was sent.
        WorkError: The line failed again and again, or the host's disk is full.
    """
    places = [job.root, job.code_dir, job.dir]
    places += [f"{job.root}/{item.place.rpartition('/')[0]}" for item in cargo.inputs]
    host.run_patiently(("sh", "-c", 'umask 077; mkdir -p -- "$@"', "sh", *places))
    progress("code", 0, 1)
    source = Path(harness.__file__).parent.parent
    host.push([source / name for name in _CODE], job.code_dir, *_CODE_FLAGS)
    progress("code", 1, 1)
    _send_inputs(host, job, cargo.inputs, progress)
    write_files(job, cargo, staging)
    host.push([f"{staging}/"], job.dir)


def write_files(job: RemoteJob, cargo: Cargo, staging: Path) -> None:
    """The job's folder as it is to be on the host: its record, its YAML, links to its inputs."""
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    write_atomic(staging / JOB_NAME, job.model_dump_json(indent=1))
    for name, text in cargo.documents.items():
        write_atomic(staging / name, text)
    for name, place in (*cargo.links.items(), (INPUTS_DIR, INPUTS_DIR)):
        link = staging / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (len(Path(name).parts) + 1)
        link.symlink_to(f"{up}{place}")


def start(host: Host, job: RemoteJob, environment: dict[str, str], attempt: int = 1) -> None:
    """Starts a job that was sent; what it is told besides goes through the line, into memory.

    Raises:
        CheckError: The host has other code than the job was made for.
    """
    try:
        ask_job(host, job, "start", str(attempt), told=json.dumps(environment).encode())
    except CommandError as error:
        if error.code != REFUSED:
            raise
        raise CheckError(
            error.message,
            "were files of harness edited just now? run it again: what differs is replaced",
        ) from error


def _send_inputs(host: Host, job: RemoteJob, inputs: Sequence[Input], progress: ProgressFn) -> None:
    """Sends what is not there, then once more comparing every byte, before it gives up."""
    for further in ((), ("--checksum",)):
        lacking = _lacking(host, job, inputs)
        for number, item in enumerate(lacking, 1):
            progress("inputs", number - 1, len(lacking))
            flags = ("--copy-links", *(("--delete",) if item.source.is_dir() else ()))
            folder = f"{job.root}/{item.place.rpartition('/')[0]}"
            host.push([item.source], folder, *flags, *further)
            progress("inputs", number, len(lacking))
        if not lacking:
            return
    if lacking := _lacking(host, job, inputs):
        names = ", ".join(str(item.source) for item in lacking)
        raise CheckError(
            f"expected on {host.address} the digests of what was sent, found others: {names}",
            "was it written to meanwhile? call the same command again",
        )


def _lacking(host: Host, job: RemoteJob, inputs: Sequence[Input]) -> list[Input]:
    """The inputs of which the host counts another digest, or which it has not."""
    if not inputs:
        return []
    words = job_words(job, "count", *(item.place for item in inputs), place=".")
    digests = host.run_patiently(words).decode().splitlines()
    return [i for i, digest in zip(inputs, digests, strict=True) if digest != i.digest.root]
