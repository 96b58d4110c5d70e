"""A worker whose host loses the network for a while, the store being on the other side."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from fakes.partition import Link, linked, missing_rights

from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.tracking.store import open_store

from .test_store_away import Server

pytestmark = pytest.mark.timeout(200)
_AWAY_S = float(os.environ.get("HARNESS_TEST_AWAY_S", "8"))
_GOES_ON_S = 60.0


@pytest.fixture
def link() -> Iterator[Link]:
    if reason := missing_rights():
        pytest.skip(reason)
    with linked("hxpart") as found:
        yield found


@pytest.fixture
def server(settings: Settings, link: Link) -> Iterator[Server]:
    found = Server(settings, link.here)
    yield found
    found.send(signal.SIGKILL)


def test_a_training_goes_on_while_its_host_is_cut_off_and_loses_no_point(
    settings: Settings, link: Link, server: Server
) -> None:
    environment = {
        **os.environ,
        "HARNESS_ROOT": str(settings.root_dir),
        "HARNESS_CACHE": str(settings.cache_dir),
        "MLFLOW_TRACKING_URI": server.uri,
    }
    words = ("train", "train.yaml", "--set", "epochs=60", "--set", "replay_tokens=0", "--new")
    process = subprocess.Popen(
        link.inside(sys.executable, "-m", "harness", *words),
        env=environment, cwd=settings.root_dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    folder = settings.checkpoints_dir
    before = set(folder.glob("*/epochs/*/figures.json"))
    deadline = time.monotonic() + 90
    while len(set(folder.glob("*/epochs/*/figures.json")) - before) < 3:
        assert time.monotonic() < deadline, "it did not train"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    link.cut()
    cut_at = time.monotonic()
    at_cut = set(folder.glob("*/epochs/*/training_state.json"))
    while not set(folder.glob("*/epochs/*/training_state.json")) - at_cut:
        assert time.monotonic() < cut_at + _GOES_ON_S, "it did not train on without the store"
        time.sleep(0.1)
    time.sleep(max(0.0, cut_at + _AWAY_S - time.monotonic()))
    link.mend()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    store = open_store(settings.model_copy(update={"tracking_uri": server.uri}))
    (run,) = store.find_runs(kind=names.KIND_TRAIN)
    assert run.status is RunStatus.FINISHED
    assert [c.epoch for c in store.checkpoints(run.run_id)] == list(range(60))
