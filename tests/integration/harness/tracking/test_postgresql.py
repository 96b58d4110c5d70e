"""A store straight in PostgreSQL: first use by several, one that is away, shared artifacts."""

import threading
import time
from pathlib import Path

import pytest
from fakes.command_line import environment_of, run_harness, start_python
from fakes.deployment import Deployment
from fakes.store_contract import log_checkpoint, weights

from harness.errors import TrackingError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import Metric, RunStatus
from harness.tracking.store import open_store

from .test_embedded import OPEN_AND_LOG

__all__ = ["weights"]


def test_three_processes_open_an_empty_database_at_once(
    postgres: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", postgres.credentials["PGPASSFILE"])
    uri = postgres.create_database("first_use")
    environment = {**environment_of(tmp_path), "MLFLOW_TRACKING_URI": uri}
    processes = [
        start_python(tmp_path, "-c", OPEN_AND_LOG, str(number), environment=environment)
        for number in range(3)
    ]
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
    with postgres.connect("first_use") as connection:
        rows = connection.execute("SELECT name, status FROM runs ORDER BY name").fetchall()
    assert rows == [(f"writer {number} #1", RunStatus.FINISHED) for number in range(3)]


def test_one_that_does_not_answer_is_one_message_without_its_password(tmp_path: Path) -> None:
    uri = "postgresql+psycopg://harness:planted-word@127.0.0.1:9/mlflow"
    done = run_harness(tmp_path, "registry", "list", MLFLOW_TRACKING_URI=uri)
    assert done.returncode == 1
    assert "database cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
    assert "planted-word" not in done.stdout + done.stderr


def test_artifacts_are_kept_where_every_host_reaches_them(
    postgres_settings: Settings, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    settings = postgres_settings.model_copy(update={"artifact_root": str(shared)})
    store = open_store(settings)
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        run.log_text("config/train.yaml", "lr: 1\n")
    elsewhere = settings.model_copy(update={"root_dir": tmp_path / "another project"})
    assert open_store(elsewhere).read_text(run.run_id, "config/train.yaml") == "lr: 1\n"
    assert list(shared.rglob("train.yaml"))


def test_a_database_that_is_not_there_is_named(postgres_settings: Settings) -> None:
    base = postgres_settings.tracking_uri.rpartition("/")[0]
    missing = postgres_settings.model_copy(update={"tracking_uri": f"{base}/nowhere"})
    with pytest.raises(TrackingError, match='database "nowhere" does not exist'):
        open_store(missing)


def test_restarts_are_waited_for_in_every_write_and_read(
    postgres_template: Deployment, postgres_settings: Settings, weights: Path
) -> None:
    postgres_settings = postgres_settings.model_copy(update={"root_dir": weights.parents[1]})
    store = open_store(postgres_settings)

    def restart() -> None:
        for _ in range(3):
            time.sleep(1)
            postgres_template.up("stop")
            time.sleep(1)
            postgres_template.up("postgres")

    restarts = threading.Thread(target=restart)
    restarts.start()
    written = []
    while restarts.is_alive():
        with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
            run.log_params({"lr": 1e-3})
            run.log_metrics([Metric("loss", 1.0, step) for step in range(50)])
            run.log_dataset("corpus", "/data/corpus", "ab" * 32, "training")
            model_id = log_checkpoint(run, weights)
            store.set_model_tags(model_id, {"kept": True})
        written.append(run.run_id)
    restarts.join()
    found = {run.run_id: run for run in store.find_runs(kind=names.KIND_TRAIN)}
    for run_id in written:
        assert found[run_id].status is RunStatus.FINISHED
        assert found[run_id].metrics["loss"] == 1.0
        assert store.checkpoints(run_id)[-1].tags["kept"] == "true"
