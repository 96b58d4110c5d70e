"""One sweep on the embedded store, and on PostgreSQL and an MLflow server, restarts included."""

import os
import time

import pytest
from fakes.deployment import Deployment
from fakes.ray_cluster import RayCluster

from harness.settings import Settings
from harness.sweep.records import TrialState
from harness.tracking import names
from harness.tracking.store import open_store

from .conftest import Sweep, run_harness
from .test_sweep import SLOW, finish, require_accounted, wait_for

pytestmark = pytest.mark.timeout(580)
PLANTED = "hf_PlantedInTheEnvironment"
_AWAY_S = float(os.environ.get("HARNESS_TEST_AWAY_S", "8"))


@pytest.fixture
def served(settings: Settings, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The project with its runs on the MLflow server and its studies in PostgreSQL."""
    for name, value in deployment.credentials.items():
        monkeypatch.setenv(name, value)
    return settings.model_copy(
        update={
            "tracking_uri": deployment.server_url,
            "sweep_storage": f"{deployment.base_url}/optuna",
        }
    )


def test_one_sweep_yaml_has_the_same_points_and_best_on_each_store_and_on_ray_and_leaks_no_secret(
    *,
    settings: Settings,
    served: Settings,
    start: Sweep,
    deployment: Deployment,
    ray_cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", PLANTED)
    on_ray = ("--launcher", "ray", "--address", ray_cluster.restore().address)
    space = {"lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}}
    journal = served.model_copy(update={"sweep_storage": None})
    found = []
    for store, flags in ((settings, ()), (served, ()), (journal, on_ray)):
        # The base is trial 0, so that three trials are two points of the sampler.
        process = start("moving", *flags, store=store, fixed={"epochs": 1}, space=space, workers=1)
        finish(process)
        trials = require_accounted(store, "moving", 3)
        best = finish(run_harness(store, "sweep", "best", "moving")).splitlines()[0]
        found.append(([(t.params, t.values) for t in trials], best))
        (settings.sweeps_dir / "moving").rename(settings.sweeps_dir / f"moved-{len(found)}")
    embedded, remote, clustered = found
    assert embedded == remote == clustered
    assert len({trial[0]["lr"] for trial in embedded[0]}) == 3
    run_id = trials[0].facts["run_id"]
    (checkpoint,) = open_store(served).checkpoints(run_id)
    assert open_store(served).checkpoint_manifest(checkpoint.model_id).root == checkpoint.digest
    assert deployment.rows_with("mlflow", run_id), "where it looks, it finds"
    for secret in (PLANTED, deployment.credentials["MLFLOW_TRACKING_PASSWORD"]):
        assert deployment.rows_with("mlflow", secret) == []
        assert deployment.rows_with("optuna", secret) == []
        for folder in (settings.mlruns_dir, deployment.dir / "artifacts"):
            files = [path for path in folder.rglob("*") if path.is_file()]
            assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_postgresql_that_is_restarted_in_mid_sweep_breaks_no_trial(
    settings: Settings, start: Sweep, postgres_template: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", postgres_template.credentials["PGPASSFILE"])
    uri = postgres_template.create_database("restarted", "template_store")
    study = postgres_template.create_database("restarted_study")
    store = settings.model_copy(update={"tracking_uri": uri, "sweep_storage": study})
    process = start("restarted", store=store, fixed=SLOW, n_trials=2)

    def has_begun(number: int) -> bool:
        path = settings.sweeps_dir / "restarted" / "trials" / f"{number:04d}" / "events-1.jsonl"
        return path.is_file() and b'"epoch"' in path.read_bytes()

    wait_for(lambda: has_begun(0), process, "an epoch of the first trial")
    postgres_template.up("stop")
    time.sleep(_AWAY_S)
    postgres_template.up("postgres")
    finish(process)
    trials = require_accounted(store, "restarted", 2)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    assert [trial.num_attempts for trial in trials] == [1, 1], "no training was broken off"
    opened = open_store(store)
    for trial in trials:
        kept = opened.checkpoints(trial.facts["run_id"])
        assert sorted({c.epoch for c in kept if c.epoch is not None})[-1] == SLOW["epochs"] - 1
        assert names.METRIC_TRAIN_LOSS in opened.get_run(trial.facts["run_id"]).metrics
