from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter

from harness.errors import TrackingError
from harness.settings import Settings, load_settings
from harness.sweep import trial
from harness.tracking.records import Metric
from harness.tracking.store import Store
from harness.training.messages import Saved
from harness.training.recorder import Recorded


@pytest.mark.parametrize(
    ("epoch", "part", "freq", "rung"),
    [(0, 1.0, 1.0, 1), (2, 1.0, 1.0, 3), (0, 61 / 122, 0.5, 1), (1, 1.0, 0.5, 4),
     (1, 20 / 61, 1 / 3, 4), (3, 1.0, 2.0, 4)],
)  # fmt: skip
def test_a_pruner_counts_checkpoints_where_there_are_several_an_epoch(
    epoch: int, part: float, freq: float, rung: int, tmp_path: Path
) -> None:
    path = write_tiny_drafter(tmp_path / "0")
    saved = Saved(epoch=epoch, step=5, path=path, metrics={}, part=part)
    found = trial.as_epoch(Recorded(None, saved, None), freq)
    assert found.rung == rung
    assert found.num_epochs == pytest.approx(epoch + part, abs=0.01)


class Away:
    """A store that answers once the clock shows `until_s`."""

    def __init__(self, folder: Path, until_s: float) -> None:
        self.store, self.until_s, self.now_s = MemoryStore(folder), until_s, 0.0

    def open(self, _: Settings) -> Store:
        if self.now_s < self.until_s:
            raise TrackingError("nothing answers there")
        return self.store

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_trial_that_starts_while_the_store_is_away_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(tmp_path, until_s=60.0)
    monkeypatch.setattr(trial, "open_store", away.open)
    found = trial.open_patiently(load_settings(tmp_path), lambda: away.now_s, away.sleep)
    assert found is away.store
    assert 60 <= away.now_s < 70


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away(tmp_path, until_s=1e9)
    monkeypatch.setattr(trial, "open_store", away.open)
    with pytest.raises(TrackingError, match="nothing answers"):
        trial.open_patiently(load_settings(tmp_path), lambda: away.now_s, away.sleep)
    assert 300 <= away.now_s < 310


def test_a_training_that_was_begun_twice_costs_all_of_its_steps(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    with store.start_run("train", "t", experiment="e") as run:
        run.log_params({"total_steps": 240})
        run.log_metrics([Metric("wall_time_s", 12.0, 120)])
        assert trial.training_seconds(store.get_run(run.run_id)) == 12.0
        run.log_metrics([Metric("steps_per_s", 2.0, 120)])
        assert trial.training_seconds(store.get_run(run.run_id)) == 120.0
