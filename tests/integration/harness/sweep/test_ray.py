"""A sweep on a Ray cluster of which a host dies, and then the head, while trials are trained."""

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fakes.partition import linked, missing_rights
from fakes.ray_cluster import RayCluster

from harness.settings import Settings
from harness.sweep.process import read_owner
from harness.sweep.records import TrialState
from harness.tracking import names
from harness.tracking.owner import is_alive
from harness.tracking.records import RunStatus, RunSummary
from harness.tracking.store import open_store

from .conftest import Sweep, run_harness
from .test_sweep import finish, require_accounted, wait_for

pytestmark = pytest.mark.timeout(580)
SLOW = {"epochs": 14, "total_seq_len": 32}


def is_asked_to_stop(process: psutil.Process) -> bool:
    """Whether a SIGINT waits for a process that stands still, or it was ended after that."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    (waiting,) = (line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd"))
    return bool(int(waiting, 16) >> (signal.SIGINT - 1) & 1)


def test_a_killed_host_and_a_restarted_head_lose_no_trial_and_are_no_fault_of_one(
    settings: Settings, start: Sweep, ray_cluster: RayCluster
) -> None:
    cluster = ray_cluster.restore()
    place = ("--launcher", "ray", "--address", cluster.address)
    folder = settings.sweeps_dir / "clustered" / "trials"

    def is_under_way(number: int) -> Callable[[], bool]:
        path = folder / f"{number:04d}" / "events-1.jsonl"
        return lambda: path.is_file() and b'"epoch"' in path.read_bytes()

    process = start("clustered", *place, fixed=SLOW, n_trials=2, workers=1, max_retries=0)
    wait_for(is_under_way(0), process, "an epoch of the first trial")
    owner = read_owner(folder / "0000")
    assert owner is not None
    cluster.kill_host(cluster.host_of(owner.pid))
    wait_for(is_under_way(1), process, "an epoch of the second trial")
    cluster.kill_head()
    time.sleep(2.0)
    cluster.start()
    finish(process)
    trials = require_accounted(settings, "clustered", 2)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    store = open_store(settings)
    first = store.get_run(trials[0].facts["run_id"])
    assert first.tags[names.TAG_ATTEMPT] == "2", "it went on from its checkpoint"
    for trial in trials:
        assert trial.retry["count"] == 0
        assert trial.retry["num_losses"] == trial.num_attempts - 1 >= 1
        assert trial.retry["reason"] == "host lost"
        run = store.get_run(trial.facts["run_id"])
        parent = store.get_run(run.tags[names.TAG_PARENT])
        assert run.tags[names.TAG_CODE_DIGEST] == parent.tags[names.TAG_CODE_DIGEST]


def test_a_host_that_is_cut_off_stops_its_trial_which_goes_on_elsewhere(
    settings: Settings, start: Sweep, ray_cluster: RayCluster
) -> None:
    if reason := missing_rights():
        pytest.skip(reason)
    for host in tuple(ray_cluster.hosts):
        ray_cluster.kill_host(host)
    place = ("--launcher", "ray", "--address", ray_cluster.address)
    folder = settings.sweeps_dir / "parted" / "trials" / "0000"
    with linked("hxray") as link:
        ray_cluster.join(link)
        try:
            process = start("parted", *place, fixed=SLOW, n_trials=1, workers=1, max_retries=0)
            told = folder / "events-1.jsonl"
            wait_for(
                lambda: told.is_file() and b'"epoch"' in told.read_bytes(), process, "an epoch"
            )
            owner = read_owner(folder)
            assert owner is not None
            (worker,) = psutil.Process(owner.pid).children()
            worker.suspend()  # else it may be through before anybody misses it
            link.cut()
            ray_cluster.add_host()
            wait_for(lambda: is_asked_to_stop(worker), process, "the end of patience over there")
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
            finish(process)
            assert not is_alive(owner), "what was cut off has stopped by itself"
        finally:
            link.kill_inside()
    (trial,) = require_accounted(settings, "parted", 1)
    assert trial.state is TrialState.COMPLETE
    assert (trial.retry["count"], trial.retry["num_losses"]) == (0, 1)


def test_a_training_whose_host_is_killed_goes_on_elsewhere_in_the_same_run(
    settings: Settings, ray_cluster: RayCluster
) -> None:
    cluster = ray_cluster.restore()
    place = ("--launcher", "ray", "--address", cluster.address)
    changes = (f"--set={key}={value}" for key, value in SLOW.items())
    config = str(settings.root_dir / "train.yaml")
    process = run_harness(settings, "train", config, *place, "--name", "launched", *changes)
    store = open_store(settings)

    def runs() -> list[RunSummary]:
        found = store.find_runs(kind=names.KIND_TRAIN)
        return [run for run in found if run.name.startswith("launched")]

    wait_for(lambda: any(store.checkpoints(run.run_id) for run in runs()), process, "a checkpoint")
    cluster.kill_host(cluster.host_of(int(runs()[0].tags[names.TAG_PID])))
    output = finish(process)
    assert "its host went away" in output
    assert "Checkpoints" in output
    (run,) = runs()
    assert run.status is RunStatus.FINISHED
    assert run.tags[names.TAG_ATTEMPT] == "2"
    assert run.tags[names.TAG_TASK]
