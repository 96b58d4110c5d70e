"""The embedded store on disk: first use, moving, faults. Real MLflow, real processes."""

import shutil
import signal
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest
from fakes.command_line import run_harness, start_python
from fakes.store_contract import log_checkpoint, weights

from harness.errors import TrackingError
from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.embedded import MARKER
from harness.tracking.reaping import reap
from harness.tracking.records import Metric, RunStatus
from harness.tracking.store import Store, open_store

__all__ = ["weights"]

OPEN_AND_LOG = """
import sys
from harness.settings import load_settings
from harness.tracking.records import Metric
from harness.tracking.store import open_store
store = open_store(load_settings())
with store.start_run("train", f"writer {sys.argv[1]}", experiment="harness-train") as run:
    for step in range(5):
        run.log_metrics([Metric("loss", 1.0, step)])
"""
HANG = """
import signal, sys, time
from harness import cli
from harness.settings import load_settings
from harness.tracking.store import open_store
signal.signal(signal.SIGTERM, cli._terminate)
store = open_store(load_settings())
with store.start_run("train", "hang", experiment="harness-train") as run:
    print(run.run_id, flush=True)
    time.sleep(120)
"""


@pytest.fixture
def missing(tmp_path: Path) -> Settings:
    """A project without a store."""
    uri = f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db'}"
    return load_settings(tmp_path).model_copy(update={"tracking_uri": uri})


def test_three_processes_open_a_missing_store_at_once(missing: Settings) -> None:
    missing.mlruns_dir.mkdir(mode=0o755)
    processes = [
        start_python(missing.root_dir, "-c", OPEN_AND_LOG, str(number)) for number in range(3)
    ]
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
    runs = open_store(missing).find_runs()
    assert sorted(run.name for run in runs) == [f"writer {number} #1" for number in range(3)]
    assert {run.status for run in runs} == {RunStatus.FINISHED}
    mlruns = missing.mlruns_dir
    assert not list(mlruns.glob("*.new*"))
    with sqlite3.connect(mlruns / "mlflow.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    for path in (mlruns / "mlflow.db", mlruns / "artifacts", mlruns):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert not (missing.root_dir / "mlflow.db").exists()


def test_a_first_use_that_was_killed_leaves_the_next_one_unharmed(missing: Settings) -> None:
    missing.mlruns_dir.mkdir()
    (missing.mlruns_dir / ".mlflow.db.new").write_text("half a database")
    open_store(missing)
    assert not list(missing.mlruns_dir.glob("*.new*"))


def test_a_moved_store_is_refused_and_repaired(
    settings: Settings, store: Store, weights: Path, tmp_path: Path
) -> None:
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        run.log_text("config/train.yaml", "lr: 1\n")
        model_id = log_checkpoint(run, weights)
        checkpoint = store.get_checkpoint(model_id)
        store.registry.create_version("tiny", checkpoint, {})
    old, home = settings.mlruns_dir, tmp_path / "new home's place"
    home.mkdir()
    shutil.move(old, home / "mlruns")
    moved = load_settings(home)
    moved = moved.model_copy(update={"tracking_uri": f"sqlite:///{home / 'mlruns' / 'mlflow.db'}"})

    with pytest.raises(TrackingError, match="was moved") as caught:
        open_store(moved)
    assert caught.value.hint == f"harness store relocate {old} {home / 'mlruns'}"

    done = run_harness(moved.root_dir, "store", "relocate", str(old), str(home / "mlruns"))
    assert done.returncode == 0, done.stderr
    again = open_store(moved)
    assert again.read_text(run.run_id, "config/train.yaml") == "lr: 1\n"
    files = again.checkpoint_files(model_id)
    assert files is not None
    assert files.is_relative_to(home)
    assert again.registry.versions("tiny")[0].model_id == model_id
    assert len(list((home / "mlruns").glob("mlflow.db.backup-*"))) >= 1


def test_relocate_refuses_another_origin(settings: Settings) -> None:
    done = run_harness(
        settings.root_dir, "store", "relocate", "/elsewhere", str(settings.mlruns_dir)
    )
    assert done.returncode == 2
    assert f"says {settings.mlruns_dir}" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_sqlite_file_keeps_its_artifacts_beside_it(
    settings: Settings, tmp_path: Path
) -> None:
    other = tmp_path / "team" / "mlflow.db"
    other.parent.mkdir()
    shutil.copyfile(settings.mlruns_dir / "mlflow.db", other)
    store = open_store(settings.model_copy(update={"tracking_uri": f"sqlite:///{other}"}))
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        run.log_text("config/train.yaml", "lr: 1\n")
    assert (other.parent / "artifacts" / run.run_id / "artifacts/config/train.yaml").is_file()


def test_a_store_without_marker_in_its_place_is_adopted(settings: Settings) -> None:
    (settings.mlruns_dir / MARKER).unlink()
    open_store(settings)
    assert (settings.mlruns_dir / MARKER).is_file()


def test_an_old_schema_is_refused_with_the_way_out(settings: Settings) -> None:
    with sqlite3.connect(settings.mlruns_dir / "mlflow.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    with pytest.raises(TrackingError) as caught:
        open_store(settings)
    assert "mlflow db upgrade" in str(caught.value.hint)


def test_a_file_that_is_no_database_is_one_message(settings: Settings) -> None:
    (settings.mlruns_dir / "mlflow.db").write_text("no database, but long enough to be read as one")
    with pytest.raises(TrackingError, match="not a database"):
        open_store(settings)
    done = run_harness(settings.root_dir, "doctor")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_a_read_only_store_can_be_read_and_says_why_it_cannot_be_written(
    settings: Settings, store: Store
) -> None:
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        run.log_metrics([Metric("loss", 1.0)])
    database = settings.mlruns_dir / "mlflow.db"
    uri = f"sqlite:///file:{database}?mode=ro&uri=true"
    read_only = open_store(settings.model_copy(update={"tracking_uri": uri}))
    assert read_only.get_run(run.run_id).metrics == {"loss": 1.0}
    started = time.monotonic()
    with pytest.raises(TrackingError, match="read-only"):
        read_only.attach_run(run.run_id).set_tags({"a": "b"})
    assert time.monotonic() - started < 2, "a read-only store does not pass: no retry"


def test_a_busy_database_is_waited_for(settings: Settings, store: Store) -> None:
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    writer = sqlite3.connect(settings.mlruns_dir / "mlflow.db", check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    release = threading.Timer(1.0, writer.rollback)
    release.start()
    started = time.monotonic()
    run.log_metrics([Metric("loss", 1.0)])
    assert time.monotonic() - started > 0.5
    release.join()
    run.finish()
    assert store.get_run(run.run_id).metrics == {"loss": 1.0}


@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGINT, RunStatus.KILLED), (signal.SIGTERM, RunStatus.KILLED)],
)
def test_a_signal_closes_the_run(
    settings: Settings, store: Store, signum: signal.Signals, status: RunStatus
) -> None:
    process = start_python(settings.root_dir, "-c", HANG)
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    process.send_signal(signum)
    process.communicate(timeout=60)
    found = store.get_run(run_id)
    assert found.status == status
    assert found.tags[names.TAG_FAILURE] == "interrupted"


def test_sigkill_leaves_a_run_that_doctor_closes(settings: Settings, store: Store) -> None:
    process = start_python(settings.root_dir, "-c", HANG)
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    assert reap(store) == ()
    process.kill()
    process.communicate(timeout=60)
    assert store.get_run(run_id).status == RunStatus.RUNNING
    done = run_harness(settings.root_dir, "doctor", "--reap", "--json")
    assert f'"run_id": "{run_id}"' in done.stdout
    assert store.get_run(run_id).status == RunStatus.KILLED


def test_a_server_that_does_not_answer_is_one_message(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"tracking_uri": "http://127.0.0.1:9"})
    with pytest.raises(TrackingError, match="nothing answers there"):
        open_store(nowhere)
