from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter

from harness.tracking import names
from harness.tracking.records import Checkpoint
from harness.training.checkpoints import (
    TAG_RETAINED,
    apply_retention,
    checkpoint_name,
    estimate_acceptance_length,
    plan_retention,
    register_checkpoint,
    validation_metrics,
)
from harness.training.messages import Saved


def test_a_checkpoint_has_a_name_that_mlflow_takes() -> None:
    assert checkpoint_name("train qwen2.5 lr1.5e-3 a/b:c #1", 2) == (
        "train qwen2-5 lr1-5e-3 a-b-c #1 epoch 2"
    )


def checkpoint(epoch: int, length: float | None) -> Checkpoint:
    metrics = {} if length is None else {names.METRIC_VAL_ACCEPTANCE_LENGTH: length}
    return Checkpoint(
        model_id=f"m{epoch}", run_id="r", name=f"epoch {epoch}", path=Path(f"/none/{epoch}"),
        step=epoch, epoch=epoch, digest="d", num_bytes=1, is_uploaded=False, params={}, tags={},
        metrics=metrics,
    )  # fmt: skip


def gone(
    lengths: list[float | None], keep_best: int, protected: set[str] | None = None
) -> list[int]:
    found = [checkpoint(epoch, length) for epoch, length in enumerate(lengths)]
    kept = plan_retention(found, keep_best, frozenset(protected or ()))
    return [c.epoch or 0 for c in kept]


def test_the_estimate_is_one_plus_the_products_of_conditional_accuracy() -> None:
    metrics = {"cond_acc_0": 0.5, "cond_acc_1": 0.4, "cond_acc_2": 0.25, "full_acc_0": 0.9}
    assert estimate_acceptance_length(metrics) == pytest.approx(1 + 0.5 + 0.2 + 0.05)


def test_without_figures_there_is_no_estimate() -> None:
    assert estimate_acceptance_length({"loss": 1.0}) is None
    assert validation_metrics({"loss": 1.0}) == {"val/loss": 1.0}


def test_the_estimate_at_a_k_takes_so_many_steps_or_is_unknown() -> None:
    metrics = {"cond_acc_0": 0.5, "cond_acc_1": 0.4}
    assert estimate_acceptance_length(metrics, 1) == 1.5
    assert estimate_acceptance_length(metrics, 2) == estimate_acceptance_length(metrics)
    assert estimate_acceptance_length(metrics, 3) is None


def test_a_drafter_that_is_always_wrong_is_estimated_at_one() -> None:
    assert estimate_acceptance_length({"cond_acc_0": 0.0, "cond_acc_1": 0.7}) == 1.0


@pytest.mark.parametrize(
    ("lengths", "keep_best", "protected", "expected"),
    [
        ([], 1, set(), []),
        ([1.1], 1, set(), []),
        ([1.1, 1.3, 1.2], 1, set(), [0]),
        ([1.1, 1.3, 1.2], 2, set(), [0]),
        ([1.3, 1.2, 1.1, 1.0], 1, set(), [1, 2]),
        ([1.3, 1.2, 1.1, 1.0], 1, {"m2"}, [1]),
        ([1.0, 1.1, 1.2, 1.3], 1, set(), [0, 1, 2]),
        ([None, None, None], 1, set(), [0, 1]),
    ],
)
def test_best_last_and_registered_checkpoints_stay(
    lengths: list[float | None], keep_best: int, protected: set[str], expected: list[int]
) -> None:
    assert gone(lengths, keep_best, protected) == expected


def test_registered_checkpoints_are_ranked_and_the_worst_files_go(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    for epoch, accuracy in enumerate((0.2, 0.6, 0.5)):
        saved = Saved(
            epoch=epoch,
            step=epoch + 1,
            path=write_tiny_drafter(tmp_path / str(epoch), seed=epoch),
            metrics={"loss": 1.0, "cond_acc_0": accuracy},
        )
        register_checkpoint(
            saved, run, store, dataset=("corpus", "ab" * 32), params={}, upload_below_bytes=0
        )
    dropped = apply_retention(store, run.run_id, keep_best=1)
    assert [c.epoch for c in dropped] == [0]
    assert not (tmp_path / "0").exists()
    assert (tmp_path / "1").is_dir()
    found = store.checkpoints(run.run_id)
    assert found[0].tags[TAG_RETAINED] == "false"
    assert found[1].metrics[names.METRIC_VAL_ESTIMATED_LENGTH] == pytest.approx(1.6)
    assert apply_retention(store, run.run_id, keep_best=1) == ()
