"""`harness ui`: ready, loopback only, quiet, and gone with whoever started it."""

import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest
from fakes.command_line import run_harness, start_python

from harness.settings import Settings
from harness.tracking import names
from harness.tracking.store import Store

READY_S = 120


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def ui(settings: Settings, port: int) -> Iterator["subprocess.Popen[str]"]:
    process = start_python(settings.root_dir, "-m", "harness", "ui", "--port", str(port))
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == f"MLflow UI: http://127.0.0.1:{port}\n", process.communicate(timeout=30)
    yield process
    process.kill()
    process.wait(30)


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    response = connection.getresponse()
    return response.status, response.read().decode()


def family(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_until_gone(processes: list[psutil.Process], timeout_s: float = 30) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout_s)
    return alive


def test_it_serves_runs_and_artifacts_and_ends_with_ctrl_c(
    store: Store, port: int, ui: "subprocess.Popen[str]"
) -> None:
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        run.log_text("config/train.yaml", "lr: 1\n")
    assert get(port, "/health") == (200, "OK")
    _, text = get(port, f"/ajax-api/2.0/mlflow/runs/get?run_id={run.run_id}")
    assert json.loads(text)["run"]["info"]["run_name"] == "train #1"
    path = f"/get-artifact?path=config%2Ftrain.yaml&run_uuid={run.run_id}"
    assert get(port, path) == (200, "lr: 1\n")
    assert get(port, "/", host="evil.example")[0] == 403
    assert get(port, "/", host="10.0.0.5")[0] == 403

    children = family(ui)
    assert children
    ui.send_signal(signal.SIGINT)
    assert ui.wait(30) == 130
    assert wait_until_gone(children) == []


def test_it_listens_on_loopback_alone(port: int, ui: "subprocess.Popen[str]") -> None:
    listening = {
        connection.laddr.ip
        for process in family(ui)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_it_dies_with_its_parent(ui: "subprocess.Popen[str]") -> None:
    children = family(ui)
    ui.kill()
    assert wait_until_gone(children) == []


def test_a_port_that_is_taken_is_one_message(settings: Settings, port: int) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        started = time.monotonic()
        done = run_harness(settings.root_dir, "ui", "--port", str(port))
        assert time.monotonic() - started < 10
    assert done.returncode == 3
    assert f"port {port} on 127.0.0.1 is taken" in done.stderr
    assert f"--port {port + 1}" in done.stderr
