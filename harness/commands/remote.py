"""`harness remote`: a command of harness on a host over ssh, its runs brought home."""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.drafter.provenance import code_digest
from harness.errors import ConfigError, WorkError
from harness.remote import environment, ship
from harness.remote.fetch import fetch as fetch_job
from harness.remote.fetch import find_target
from harness.remote.follow import Screen, follow
from harness.remote.host import Host, require_tools
from harness.remote.inputs import Cargo, gather
from harness.remote.records import JOB_NAME, JobState, RemoteJob
from harness.settings import Settings, load_settings, set_variables
from harness.tracking import preflight
from harness.tracking.migrate import Place
from harness.tracking.resolve import resolve_drafter
from harness.tracking.store import open_store
from harness.training.process import signal_name

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Work on a host over ssh: run, attach, status, stop, resume, fetch.",
)

_Job = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Its id; else the newest.")]
_Database = Annotated[
    str | None,
    typer.Option(
        envvar="HARNESS_STORE_DATABASE",
        help="Where this project's store is an MLflow server: the database behind it.",
    ),
]
_INTERRUPTED = 130


@app.command()
def run(
    host: Annotated[str, typer.Argument(help="A name of ssh_config, or user@address.")],
    arguments: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="train, sweep, ...")],
    *,
    python: Annotated[str, typer.Option(help="Interpreter there, with the lock's packages.")] = (
        "python3"
    ),
    root: Annotated[str, typer.Option(help="Folder there, below the home or absolute.")] = (
        "drafter-harness"
    ),
    gpus: Annotated[int, typer.Option(help="Free GPUs that it must have, and sees.")] = 0,
    pass_env: Annotated[
        list[str] | None, typer.Option(help="A variable that it is told, such as HF_TOKEN.")
    ] = None,
    ssh_config: Annotated[Path | None, typer.Option("--ssh-config", help="Else your own.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and return.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the host; send nothing.")
    ] = False,
    database: _Database = None,
) -> int:
    """Sends code and inputs, runs the command there, shows it, brings its runs home."""
    require_tools()
    settings = load_settings()
    cargo = gather(tuple(arguments), settings, lambda text: _find_stored(text, settings))
    target = find_target(settings, database)
    job = RemoteJob(
        id=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{cargo.arguments[0]}-{secrets.token_hex(2)}",
        host=host,
        ssh_config=ssh_config.absolute() if ssh_config else None,
        root=root,
        python=python,
        code=code_digest(),
        arguments=cargo.arguments,
        num_gpus=gpus,
        inputs=tuple(f"{item.source.name} {item.digest.root}" for item in cargo.inputs),
        passed=tuple(pass_env or ()),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    told = _told(job.passed)
    line = Host(host, job.ssh_config)
    _check(line, job, cargo)
    if dry_run:
        render.show_facts("would be sent", {i.source.name: i.digest.root for i in cargo.inputs})
        return 0
    folder = _folder(settings, job.id)
    with render.progress() as progress:
        ship.send(line, job, cargo, folder / "sent", progress)
    (folder / JOB_NAME).write_text(job.model_dump_json(indent=1), encoding="utf-8")
    ship.start(line, job, told)
    render.log(f"{job.id} runs on {host}, whatever becomes of this line")
    if detach:
        render.log(f"look at it: harness remote attach {job.id}")
        return 0
    return _see_through(line, job, target, folder)


@app.command()
def attach(job_id: _Job = None, *, database: _Database = None) -> int:
    """Shows what a job printed and prints, to its end; then brings its runs home."""
    settings = load_settings()
    job = _find_job(settings, job_id)
    target = find_target(settings, database)
    return _see_through(_line(job), job, target, _folder(settings, job.id))


@app.command()
def resume(job_id: _Job = None, *, database: _Database = None) -> int:
    """Starts a job again that was stopped or lost; its sweep or training goes on where it saved."""
    settings = load_settings()
    job = _find_job(settings, job_id)
    target = find_target(settings, database)
    line = _line(job)
    state = ship.read_state(line, job)
    if state.state not in {"ended", "lost"}:
        raise ConfigError(
            f"expected a job that has ended, {job.id} is {state.state}",
            f"look at it: harness remote attach {job.id}",
        )
    ship.start(line, job, _told(job.passed), state.num_attempts + 1)
    return _see_through(line, job, target, _folder(settings, job.id), state.num_log_bytes)


@app.command()
def status(job_id: _Job = None, *, as_json: AsJson = False) -> None:
    """How a job stands, asked of its host."""
    job = _find_job(load_settings(), job_id)
    state = ship.read_state(_line(job), job)
    if as_json:
        render.show_json(state)
        return
    facts = {
        "host": job.host,
        "command": " ".join(job.arguments),
        "digest of the code": job.code,
        "state": state.state,
        "exit code": state.code,
        "started": state.started_at,
        "output": f"{state.num_log_bytes} bytes",
    }
    render.show_facts(job.id, facts)


@app.command()
def fetch(job_id: _Job = None, *, database: _Database = None) -> None:
    """Brings home the runs that have ended; of a job that runs, too, and again later."""
    settings = load_settings()
    job = _find_job(settings, job_id)
    _fetch(_line(job), job, find_target(settings, database), _folder(settings, job.id))


@app.command()
def stop(job_id: _Job = None) -> None:
    """Asks a job to save and stop; attach or fetch afterwards."""
    job = _find_job(load_settings(), job_id)
    ship.ask_job(_line(job), job, "stop")
    render.log(f"asked {job.id} on {job.host} to stop; a training saves a checkpoint first")


def _see_through(line: Host, job: RemoteJob, target: Place, folder: Path, offset: int = 0) -> int:
    """Follows a job to its end and brings home what it made; its exit code is ours."""
    try:
        state = follow(line, job, Screen(render.show_output, render.warn), offset)
    except KeyboardInterrupt:
        render.log(f"{job.id} goes on: harness remote attach {job.id}, or stop {job.id}")
        return _INTERRUPTED
    _fetch(line, job, target, folder)
    return _exit_code(job, state)


def _exit_code(job: RemoteJob, state: JobState) -> int:
    if state.code is None:
        raise WorkError(
            f"{job.id}: its process on {job.host} is gone and left no exit code",
            f"was the host restarted? harness remote resume {job.id} goes on where it saved",
        )
    if state.code < 0:
        raise WorkError(
            f"{job.id}: it was ended by {signal_name(state.code)} on {job.host}",
            f"did it take too much memory? harness remote resume {job.id} goes on where it saved",
        )
    return state.code


def _fetch(line: Host, job: RemoteJob, target: Place, folder: Path) -> None:
    with render.progress() as progress:
        found = fetch_job(line, job, target, folder, progress)
    num_runs = len(found.merged.run_ids) if found.merged else 0
    num_checkpoints = len(found.merged.model_ids) if found.merged else 0
    beside = f", and {', '.join(found.folders)}" if found.folders else ""
    render.log(f"brought home: {num_runs} runs, {num_checkpoints} checkpoints{beside}")


def _check(line: Host, job: RemoteJob, cargo: Cargo) -> None:
    facts = environment.ask(line, job.python, job.root, cargo.packages)
    checks = environment.check_host(
        facts, needed_bytes=cargo.num_bytes, num_gpus=job.num_gpus, packages=cargo.packages
    )
    preflight.require_green(checks, f"work on {line.address}")
    render.log(f"{line.address}: {len(checks)} checks are green, {facts.num_cpus} cores")


def _told(names: tuple[str, ...]) -> dict[str, str]:
    told = set_variables(names)
    missing = [name for name in names if name not in told]
    if missing:
        raise ConfigError(
            f"--pass-env: expected variables that are set here, found no {', '.join(missing)}",
            "export them first; their values are neither shown nor written anywhere",
        )
    return told


def _find_stored(reference: str, settings: Settings) -> Path:
    return resolve_drafter(reference, settings, open_store(settings)).path


def _line(job: RemoteJob) -> Host:
    require_tools()
    return Host(job.host, job.ssh_config)


def _folder(settings: Settings, job_id: str) -> Path:
    return settings.mlruns_dir / "remote" / job_id


def _find_job(settings: Settings, job_id: str | None) -> RemoteJob:
    """A job by its id or how that begins; the newest where none is named.

    Raises:
        ConfigError: There is none, or several begin so.
    """
    place = settings.mlruns_dir / "remote"
    known = sorted(path.parent.name for path in place.glob(f"*/{JOB_NAME}"))
    found = [name for name in known if name.startswith(job_id or "")]
    if not found or (job_id and job_id not in known and len(found) > 1):
        raise ConfigError(
            f"expected one job {job_id or ''} in {place}, found {', '.join(found) or 'none'}",
            f"there are: {', '.join(known) or 'none yet'}",
        )
    name = job_id if job_id in found else found[-1]
    return RemoteJob.model_validate_json((place / str(name) / JOB_NAME).read_bytes())
