"""`harness ui`: the MLflow UI on 127.0.0.1, until Ctrl-C.

The server runs under `eval/supervise.py`, so that it ends when this process does, however it does.
"""

import http.client
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from eval import supervise
from harness import render
from harness.errors import PrerequisiteError, WorkError
from harness.redaction import redacted
from harness.settings import Settings, child_environment, load_settings
from harness.tracking.embedded import prepare_embedded

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_HOST = "127.0.0.1"
_START_TIMEOUT_S = 90
"""The server takes 5-33 s to answer, by machine and load."""
_STOP_TIMEOUT_S = 10
_POLL_S = 0.25


@app.command()
def main(
    *,
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Port on 127.0.0.1.")] = 5000,
    open_browser: Annotated[bool, typer.Option("--open", help="Open a browser on it.")] = False,
) -> None:
    """Serves the MLflow UI on 127.0.0.1 (one worker, no telemetry) until Ctrl-C."""
    settings = load_settings()
    if settings.tracking_uri.startswith(("http://", "https://")):
        render.show_text(redacted(settings.tracking_uri))  # it is served already
        return
    with serve(settings, port) as (address, process):
        render.show_text(f"MLflow UI: {address}")
        render.log("Ctrl-C stops it")
        if open_browser:
            webbrowser.open(address)
        process.wait()
        raise WorkError("the MLflow server ended by itself", f"see {_log_path(settings)}")


@contextmanager
def serve(settings: Settings, port: int) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The UI's address and process, healthy inside the block and gone after it.

    Raises:
        PrerequisiteError: The port is taken.
        WorkError: The server did not become healthy within 90 s.
    """
    _require_free(port)
    if settings.is_embedded:
        prepare_embedded(settings)
    process = _start(settings, port)
    try:
        _wait_until_healthy(process, port, _log_path(settings))
        yield f"http://{_HOST}:{port}", process
    finally:
        _stop(process)


def _log_path(settings: Settings) -> Path:
    return settings.mlruns_dir / "ui.log"


def _start(settings: Settings, port: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "mlflow", "server", "--host", _HOST, "--port", str(port)]
    command += ["--workers", "1", "--allowed-hosts", "localhost:*,127.0.0.1:*"]
    command += ["--no-serve-artifacts"]
    command += ["--default-artifact-root", str(settings.artifacts_dir)]
    settings.mlruns_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _log_path(settings).open("wb") as log:
        return subprocess.Popen(
            supervise.guard(command, _STOP_TIMEOUT_S),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Not an argument: every user of the machine can read those.
            env=child_environment(
                MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
                MLFLOW_BACKEND_STORE_URI=settings.tracking_uri,
            ),
            cwd=settings.mlruns_dir,
            start_new_session=True,
        )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S + 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(process: "subprocess.Popen[bytes]", port: int, log_path: Path) -> None:
    started = time.monotonic()
    with render.progress() as progress:
        while not _is_healthy(port):
            waited_s = int(time.monotonic() - started)
            if process.poll() is not None or waited_s > _START_TIMEOUT_S:
                what = "ended" if process.poll() is not None else "was not ready"
                tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-15:])
                raise WorkError(
                    f"the MLflow server {what} after {waited_s} s:\n{tail}", str(log_path)
                )
            progress("starting the MLflow server (s)", waited_s, _START_TIMEOUT_S)
            time.sleep(_POLL_S)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise PrerequisiteError(
                f"port {port} on {_HOST} is taken by another process",
                f"give another one: harness ui --port {port + 1}",
            ) from error
