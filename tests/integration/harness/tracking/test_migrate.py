"""A store with everything in it moves to another database and back, killed on the way or not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.command_line import environment_of, run_harness
from fakes.deployment import Deployment
from fakes.store_contract import log_checkpoint, weights

from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.decisions import Decision, DecisionLog
from harness.tracking.migrate import Migration, Place, find_place, migrate_store
from harness.tracking.records import Metric, RunStatus
from harness.tracking.store import Store, open_store

__all__ = ["weights"]


def fill(store: Store, settings: Settings, folder: Path) -> str:
    """One of everything that the harness writes; returns the id of the training."""
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as train:
        train.log_params({"lr": 3e-4, "prompt": "ü" * 9000})
        train.log_metrics([Metric("loss", 1 / (3 + step), step) for step in range(1500)])
        train.log_metrics([Metric("gap", float("nan"), 7)])
        train.log_text("config/train.yaml", "lr: 3e-4\n")
        train.log_dataset("corpus", "/data/corpus", "ab" * 32, "training", {"rows": 3})
        first, second = (log_checkpoint(train, folder, step) for step in (1, 2))
    bench = store.start_run(
        names.KIND_BENCH, "bench", experiment=names.EXPERIMENT_BENCH, parent_run_id=train.run_id
    )
    with bench:
        bench.log_model_inputs([first])
        store.log_model_metrics(first, bench.run_id, {"acceptance_length": 2.1}, "set", "cd" * 32)
    for model_id in (first, second):
        store.registry.create_version("tiny", store.get_checkpoint(model_id), {"why": "test"})
    store.registry.set_alias("tiny", "champion", 2)
    decision = Decision(
        sequence=0, made_at="2026-11-29T00:00:00+00:00", who="a@b", action="promoted",
        model="tiny", from_version=None, to_version=2, model_id=second, run_id=train.run_id,
        weights_digest="ab" * 32, bench_run_id=bench.run_id, gates=(), policy={},
        policy_digest="cd" * 32, versions={}, previous_hash="",
    )  # fmt: skip
    for _ in range(2):
        DecisionLog(settings.mlruns_dir).append(decision)
    return train.run_id


def move(source: Place, target: Place) -> Migration:
    return migrate_store(source, target, lambda *_: None)


def places(
    settings: Settings, server: Settings, deployment: Deployment, back: Path
) -> tuple[Place, Place, Place]:
    database = f"{deployment.base_url}/mlflow"
    return (
        find_place(str(settings.mlruns_dir), server, None),
        find_place(server.tracking_uri, server, database),
        find_place(str(back), server, None),
    )


def test_a_store_moves_to_a_server_and_back_unchanged(
    settings: Settings, server_settings: Settings, deployment: Deployment, weights: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    run_id = fill(open_store(settings), settings, weights)
    here, server, back = places(settings, server_settings, deployment, tmp_path / "back")
    there = move(here, server)
    assert there.rows["runs"] == 2
    assert there.rows["metrics"] == 1502, "1,500 losses, hp/lr, and acceptance_length of the bench"
    assert (there.num_decisions, there.num_elsewhere) == (2, 0)

    again = move(server, back)
    assert again.digests == there.digests
    returned = back.settings
    assert snapshot(open_store(returned), run_id) == snapshot(open_store(settings), run_id)
    assert DecisionLog(returned.mlruns_dir).read() == DecisionLog(settings.mlruns_dir).read()
    files = [path for path in settings.artifacts_dir.rglob("*") if path.is_file()]
    assert len(files) == there.num_files
    for path in files:
        twin = returned.artifacts_dir / path.relative_to(settings.artifacts_dir)
        assert twin.read_bytes() == path.read_bytes()

    store = open_store(server_settings)
    assert snapshot(store, run_id) == snapshot(open_store(settings), run_id)
    with store.start_run(names.KIND_TRAIN, "train", experiment="of the server") as run:
        run.log_text("a.txt", "new runs and experiments go on")
    assert store.get_run(run.run_id).status is RunStatus.FINISHED
    with pytest.raises(ConfigError, match="filled from"):
        move(here, server)


def snapshot(store: Store, run_id: str) -> list[object]:
    """What a user of the store sees of it."""
    (bench,) = store.find_runs(kind=names.KIND_BENCH)
    checkpoints = store.checkpoints(run_id)
    return [
        store.get_run(run_id),
        bench,
        [(c.model_id, c.digest, c.metrics, c.tags) for c in checkpoints],
        [store.checkpoint_manifest(c.model_id) for c in checkpoints],
        store.read_text(run_id, "config/train.yaml"),
        store.read_text(run_id, "params/prompt.txt"),
        store.registry.versions("tiny"),
        store.registry.aliases("tiny"),
    ]


def test_a_migration_that_is_killed_goes_on_when_called_again(
    settings: Settings, store: Store, weights: Path, postgres_template: Deployment
) -> None:
    run_id = fill(store, settings, weights)
    uri = postgres_template.create_database(f"killed_{os.getpid()}", "template_store")
    name = uri.rpartition("/")[2]
    command = ["store", "migrate", str(settings.root_dir), uri]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *command],
        env={**environment_of(settings.root_dir), **postgres_template.credentials},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with postgres_template.connect(name) as connection:
        while not connection.execute("SELECT 1 FROM metrics LIMIT 1").fetchone():
            assert process.poll() is None
            time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with postgres_template.connect(name) as connection:
        asked = "SELECT value FROM experiment_tags WHERE key = 'harness.migrated_from'"
        (mark,) = connection.execute(asked).fetchone() or ("",)
        assert '"moving"' in str(mark)
    done = run_harness(settings.root_dir, *command, "--json", **postgres_template.credentials)
    assert done.returncode == 0, done.stderr
    found = Migration.model_validate_json(done.stdout)
    assert found.num_tables_before >= 3, "experiments, runs and some more had arrived"
    assert found.rows["runs"] == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSFILE", postgres_template.credentials["PGPASSFILE"])
        moved = open_store(settings.model_copy(update={"tracking_uri": uri}))
        assert snapshot(moved, run_id) == snapshot(store, run_id)


def test_stores_that_would_be_mixed_or_change_on_the_way_are_refused(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    here = find_place(str(settings.root_dir), settings, None)
    back = find_place(str(tmp_path / "back"), settings, None)
    with pytest.raises(ConfigError, match="found one"):
        move(here, here)
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    with pytest.raises(ConfigError, match="no open run"):
        move(here, back)
    run.finish()
    with open_store(back.settings).start_run("train", "other", experiment="other"):
        pass
    with pytest.raises(ConfigError, match="in use"):
        move(here, back)
    with pytest.raises(ConfigError, match="--database"):
        find_place("http://someone:word@127.0.0.1:5000", settings, None)
