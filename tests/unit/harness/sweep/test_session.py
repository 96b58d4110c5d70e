from pathlib import Path

import pytest
import yaml
from fakes.sweep_world import make_config

from harness.config.load import dump_yaml
from harness.errors import ConfigError
from harness.launch.ports import Job, Task
from harness.settings import Settings, load_settings
from harness.sweep.session import prepare


@pytest.mark.parametrize("metric", ["acceptance_length", "decode_speedup"])
def test_trials_that_are_compared_by_their_replay_need_one(metric: str, tmp_path: Path) -> None:
    base = {
        "verifier": "v", "corpus": "c", "head_dim": 8, "lr": 1e-3, "device": "cpu",
        "replay_tokens": 0,
    }  # fmt: skip
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(base))
    settings = load_settings(tmp_path)
    config = make_config(train=str(tmp_path / "train.yaml"), objectives=[{"metric": metric}])
    with pytest.raises(ConfigError, match="replay_tokens: expected above 0"):
        prepare(config, settings)
    prepare(config.model_copy(update={"fixed": {"replay_tokens": 64}}), settings)
    other = make_config(train=config.train, objectives=[{"metric": "val_loss"}])
    assert prepare(other, settings).base.replay_tokens == 0


def test_a_study_is_where_the_yaml_says_else_where_it_began_else_where_the_machine_says(
    tmp_path: Path,
) -> None:
    base = {"verifier": "v", "corpus": "c", "head_dim": 8, "lr": 1e-3, "device": "cpu"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(base))
    config = make_config(train=str(tmp_path / "train.yaml"))
    alone = load_settings(tmp_path)
    shared = alone.model_copy(update={"sweep_storage": "postgresql://host/optuna"})

    def storage(settings: Settings, **changes: object) -> str | None:
        return prepare(config.model_copy(update=changes), settings).config.storage

    assert storage(alone) is None
    assert storage(shared) == "postgresql://host/optuna"
    assert storage(shared, storage="sqlite:///x") == "sqlite:///x"
    folder = alone.sweeps_dir / config.name
    folder.mkdir(parents=True)
    begun = prepare(config, shared).config
    (folder / "sweep.yaml").write_text(dump_yaml(begun))
    assert storage(alone) == "postgresql://host/optuna", "it goes on where it was begun"
    (folder / "sweep.yaml").write_text(dump_yaml(config))
    assert storage(shared) is None


class Cluster:
    """A launcher that has room for three trials, and for none with a GPU."""

    def count_places(self, num_gpus: int) -> int:
        return 0 if num_gpus else 3

    def launch(self, task: Task) -> Job:
        raise NotImplementedError

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("workers", "count", "told"), [(None, 3, ""), (2, 2, ""), (8, 3, "8 asked for, found room")]
)
def test_more_workers_than_a_cluster_has_room_for_are_fewer_and_that_is_said(
    tmp_path: Path, workers: int | None, count: int, told: str
) -> None:
    base = {"verifier": "v", "corpus": "c", "head_dim": 8, "lr": 1e-3, "device": "cpu"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(base))
    config = make_config(train=str(tmp_path / "train.yaml"), workers=workers)
    prepared = prepare(config, load_settings(tmp_path), Cluster())
    assert len(prepared.place.slots) == count
    assert told in "".join(prepared.warnings)
    assert bool(prepared.warnings) is bool(told)


@pytest.mark.parametrize(
    ("launcher", "told"), [(Cluster(), "a launcher"), (None, "no GPU is used")]
)
def test_trials_that_cannot_share_a_gpu_are_said_to_share_none(
    tmp_path: Path, launcher: Cluster | None, told: str
) -> None:
    base = {"verifier": "v", "corpus": "c", "head_dim": 8, "lr": 1e-3, "device": "cpu"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(base))
    config = make_config(train=str(tmp_path / "train.yaml"), trials_per_gpu=4)
    (text,) = prepare(config, load_settings(tmp_path), launcher).warnings
    assert f"trials_per_gpu: 4 changes nothing: {told}" in text
