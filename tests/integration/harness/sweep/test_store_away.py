"""An MLflow server that hangs, and one that is gone, in the middle of a sweep's trainings."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from harness.settings import Settings, child_environment
from harness.sweep.records import TrialState
from harness.tracking import names
from harness.tracking.store import open_store

from .conftest import Sweep
from .test_sweep import SLOW, finish, require_accounted, wait_for

pytestmark = pytest.mark.timeout(580)
_AWAY_S = float(os.environ.get("HARNESS_TEST_AWAY_S", "8"))
_START_S = 120.0


class Server:
    """`mlflow server` in a process group of its own, started again on the same port."""

    def __init__(self, settings: Settings, address: str = "127.0.0.1") -> None:
        with socket.socket() as probe:
            probe.bind((address, 0))
            self.port = int(probe.getsockname()[1])
        self.address = address
        self.uri = f"http://{address}:{self.port}"
        self._settings = settings
        self.start()

    def start(self) -> None:
        folder = self._settings.root_dir / "server"
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "mlflow", "server", "--host", self.address]
        command += ["--port", str(self.port), "--workers", "1", "--no-serve-artifacts"]
        command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
        command += ["--default-artifact-root", str(folder / "artifacts")]
        self._process = subprocess.Popen(
            command,
            env=child_environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_S
        while not self._is_healthy():
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def send(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)
        if number is signal.SIGKILL:
            self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:  # noqa: S310 - our own
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
def server(settings: Settings) -> Iterator[Server]:
    found = Server(settings)
    yield found
    found.send(signal.SIGKILL)


def test_a_store_that_hangs_and_one_that_is_gone_stop_no_training(
    settings: Settings, start: Sweep, server: Server
) -> None:
    away = settings.model_copy(update={"tracking_uri": server.uri})
    process = start("away", store=away, fixed=SLOW, n_trials=2)

    def has_begun(number: int) -> bool:
        path = settings.sweeps_dir / "away" / "trials" / f"{number:04d}" / "events-1.jsonl"
        return path.is_file() and b'"epoch"' in path.read_bytes()

    wait_for(lambda: has_begun(0), process, "an epoch of the first trial")
    server.send(signal.SIGSTOP)
    time.sleep(_AWAY_S)
    server.send(signal.SIGCONT)
    wait_for(lambda: has_begun(1), process, "an epoch of the second trial")
    server.send(signal.SIGKILL)
    time.sleep(_AWAY_S)
    server.start()
    finish(process)
    trials = require_accounted(away, "away", 2)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    assert [trial.num_attempts for trial in trials] == [1, 1], "no training was broken off"
    store = open_store(away)
    for trial in trials:
        kept = store.checkpoints(trial.facts["run_id"])
        assert sorted({c.epoch for c in kept if c.epoch is not None})[-1] == SLOW["epochs"] - 1
        assert names.METRIC_TRAIN_LOSS in store.get_run(trial.facts["run_id"]).metrics
