import pytest

from harness.config.train import TrainConfig
from harness.errors import ConfigError
from harness.training.refusals import require_devices, require_validation

from .conftest import MakePlan

BASE = {"verifier": "v", "corpus": "c", "head_dim": 8}


def config(**changes: object) -> TrainConfig:
    return TrainConfig.model_validate({**BASE, **changes})


@pytest.mark.parametrize(
    ("visible", "changes", "is_refused"),
    [
        ("0,1", {"nproc": 2}, False),
        ("0,1", {"nproc": 3}, True),
        ("0", {"nproc": 2, "device": "cpu"}, False),
        ("", {"nproc": 2}, False),
    ],
)
def test_a_gang_needs_a_gpu_for_each_where_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, changes: dict[str, object], is_refused: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if not is_refused:
        require_devices(config(**changes))
        return
    with pytest.raises(ConfigError, match="a GPU for each of 3 processes, found 2 visible"):
        require_devices(config(**changes))


def test_each_process_needs_a_row_of_either_kind(make_plan: MakePlan) -> None:
    corpus = make_plan().corpus
    require_validation(config(nproc=2, val_ratio=0.2), corpus)
    with pytest.raises(ConfigError, match=r"each of 3 processes .* found 8 and 2"):
        require_validation(config(nproc=3, val_ratio=0.2), corpus)


def test_there_is_nothing_to_shard_in_one_process() -> None:
    assert config(nproc=2, sharding="fsdp").sharding == "fsdp"
    with pytest.raises(ValueError, match="nproc is 1"):
        config(sharding="fsdp")
