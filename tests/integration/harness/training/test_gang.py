"""Two processes that train together over gloo: the losses of one, one writer, no orphans."""

import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from harness.config.load import dump_yaml
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.tracking.store import Store
from harness.training.folders import list_epochs
from harness.training.run import TrainRun, run_training

from .conftest import MakeConfig
from .test_interruptions import newest_run, train, wait_for, wait_for_epochs

pytestmark = pytest.mark.timeout(300)

ROW_TOKENS, ROWS_A_STEP = 26, 8
ALONE = {"total_seq_len": ROWS_A_STEP * ROW_TOKENS + 12}
TOGETHER = {"total_seq_len": ROWS_A_STEP * ROW_TOKENS // 2 + 6, "nproc": 2}
"""The same 8 conversations a step: 8 in one process, 4 in each of two, all of equal length."""
SAME = {"val_ratio": 1 / 3, "epochs": 2, "replay_tokens": 0, "seed": 7}
TOLERANCE = 2e-6
"""Relative, of a loss in float32: sums of 160 tokens instead of twice 80, four steps apart."""


def curve(settings: Settings, run: TrainRun, key: str) -> list[tuple[int, float]]:
    with closing(sqlite3.connect(settings.mlruns_dir / "mlflow.db")) as connection:
        asked = "SELECT step, value FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step"
        return connection.execute(asked, (run.run_id, key)).fetchall()


@pytest.fixture(scope="module")
def alone(make_config: MakeConfig, settings: Settings, store: Store) -> TrainRun:
    return run_training(make_config(**SAME, **ALONE), settings, store, lambda *_: None)


def test_two_processes_have_the_losses_of_one_on_the_same_global_batch(
    alone: TrainRun, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    gang = run_training(make_config(**SAME, **TOGETHER), settings, store, lambda *_: None)
    for key in ("train/loss", "val/loss", "train/full_acc_0", "train/lr"):
        expected, found = curve(settings, alone, key), curve(settings, gang, key)
        assert len(expected) >= 2
        assert [step for step, _ in found] == [step for step, _ in expected], "one writer"
        assert dict(found) == pytest.approx(dict(expected), rel=TOLERANCE), key
    run = store.get_run(gang.run_id)
    assert (run.params["nproc"], run.params["num_train_conversations"]) == ("2", "16")
    assert [c.epoch for c in gang.checkpoints] == [0, 1]
    assert run.params["num_parameters"] == store.get_run(alone.run_id).params["num_parameters"]


def ranks_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    def look() -> list[psutil.Process] | None:
        children = psutil.Process(process.pid).children(recursive=True)
        found = [c for c in children if "harness.training.worker" in c.cmdline()]
        return found if len(found) == 2 else None

    return wait_for(look, "two processes that train")


def require_gone(processes: list[psutil.Process]) -> None:
    wait_for(
        lambda: not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE],
        "the end of the gang",
    )


def test_a_gang_that_shares_its_drafter_fails_stops_and_dies_as_one_and_goes_on(
    make_config: MakeConfig, settings: Settings, store: Store, tmp_path: Path
) -> None:
    config_path = tmp_path / "train.yaml"
    config = make_config(
        epochs=400, keep_best=1, upload_below_mb=0, replay_tokens=0, seed=8, nproc=2,
        total_seq_len=64, sharding="fsdp",
    )  # fmt: skip
    config_path.write_text(dump_yaml(config))
    with train(config_path, settings) as first:
        ranks = ranks_of(first)
        run = wait_for_epochs(store, settings, 1)
        ranks[1].send_signal(signal.SIGKILL)
        _, errors = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "killed by SIGKILL" in errors
    assert store.get_run(run.run_id).status is RunStatus.FAILED
    require_gone(ranks)
    done = list_epochs(settings.checkpoints_dir / run.run_id / "epochs")[-1].epoch

    with train(config_path, settings) as second:
        ranks = ranks_of(second)
        wait_for_epochs(store, settings, done + 3)
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=60)
    assert second.returncode == 130
    stopped = store.get_run(run.run_id)
    assert stopped.status is RunStatus.KILLED
    assert stopped.tags[names.TAG_FAILURE].startswith("interrupted after step")
    last = list_epochs(settings.checkpoints_dir / run.run_id / "epochs")[-1]
    assert last.is_resumable
    assert int(stopped.tags["attempt.2.first_step"]) > 0
    require_gone(ranks)

    with train(config_path, settings) as third:
        ranks = ranks_of(third)
        wait_for_epochs(store, settings, last.epoch + 2)
        family = psutil.Process(third.pid).children(recursive=True)
        third.send_signal(signal.SIGKILL)
        third.communicate(timeout=60)
        require_gone([*family, *ranks])
    assert newest_run(store).tags["attempt.3.first_step"] == str(last.step)
