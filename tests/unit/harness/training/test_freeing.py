"""What `harness gc` would delete, and what it never does."""

from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter
from fakes.trained import bench, train

from harness.config.policy import Policy
from harness.drafter.drafter import drafter_digest
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.promotion import promote
from harness.tracking.records import RunStatus
from harness.tracking.resolve import resolve_drafter
from harness.training.freeing import free_checkpoints, plan_freeing


@pytest.fixture
def run_id(store: MemoryStore, settings: Settings) -> str:
    """Three checkpoints: the second is the best, the third the last."""
    run_id, _ = train(store, settings)
    path = write_tiny_drafter(settings.checkpoints_dir / run_id / "2", seed=2)
    model = store.attach_run(run_id).log_checkpoint(
        "epoch-2", path, step=30, epoch=2, digest=drafter_digest(path)
    )
    store.log_model_metrics(model, run_id, {names.METRIC_VAL_LOSS: 9.0})
    return run_id


def freed(settings: Settings, store: MemoryStore) -> list[int | None]:
    return [held.epoch for held in plan_freeing(settings, store, 1).to_free]


def test_the_best_and_the_last_stay(store: MemoryStore, settings: Settings, run_id: str) -> None:
    plan = plan_freeing(settings, store, 1)
    assert [(held.epoch, held.kept_because is None) for held in plan.checkpoints] == [
        (0, True),
        (1, False),
        (2, False),
    ]
    folder = settings.checkpoints_dir / run_id / "0"
    assert plan.num_bytes_to_free == sum(file.stat().st_size for file in folder.iterdir())
    gone = free_checkpoints(settings, store, 1)
    assert [held.path for held in gone] == [folder]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["1", "2"]
    assert store.get_checkpoint(gone[0].model_id).tags["harness.retained"] == "false"
    assert free_checkpoints(settings, store, 1) == ()


@pytest.mark.parametrize("num_promoted", [1, 2])
def test_every_version_with_an_alias_stays(
    store: MemoryStore, settings: Settings, run_id: str, num_promoted: int
) -> None:
    models = [checkpoint.model_id for checkpoint in store.checkpoints(run_id)]
    bench(store, models, settings.root_dir / "verifier")
    for model in models[:num_promoted]:
        policy = Policy(min_acceptance_length=1.1)
        promote([f"models:/{model}"], "tiny", policy, settings, store)
    assert freed(settings, store) == []
    reasons = {
        held.epoch: held.kept_because for held in plan_freeing(settings, store, 1).checkpoints
    }
    alias = "champion" if num_promoted == 1 else "previous"
    assert reasons[0] == f"{alias} of tiny"


def test_the_parent_of_a_finetune_stays(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    parent = store.checkpoints(run_id)[0]
    train(store, settings, **{names.TAG_FINETUNE_PARENT_DIGEST: parent.digest})
    assert freed(settings, store) == []


def test_a_training_that_is_open_is_left_alone(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    store.write_status(run_id, RunStatus.RUNNING)
    assert freed(settings, store) == []
    assert free_checkpoints(settings, store, 1) == ()


def test_what_is_being_measured_stays_until_its_process_is_gone(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    model_id = store.checkpoints(run_id)[0].model_id
    measuring = store.start_run(
        names.KIND_BENCH,
        "bench tiny",
        experiment=names.EXPERIMENT_BENCH,
        tags=names.input_tags([model_id]),
    )
    assert freed(settings, store) == []
    assert free_checkpoints(settings, store, 1) == ()
    held = plan_freeing(settings, store, 1).checkpoints[0]
    assert held.kept_because == "bench tiny #1 works on it"
    measuring.set_tags({names.TAG_PID: 2**22 + 1})
    assert freed(settings, store) == [0]


def test_uploaded_copies_stay_when_the_files_go(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    path = write_tiny_drafter(settings.checkpoints_dir / run_id / "3", seed=3)
    uploaded = store.attach_run(run_id).log_checkpoint(
        "epoch-3",
        path,
        step=5,
        epoch=3,
        digest=drafter_digest(path),
        upload_below_bytes=10**9,
    )
    store.log_model_metrics(uploaded, run_id, {names.METRIC_VAL_LOSS: 8.0})
    gone = {held.model_id: held for held in free_checkpoints(settings, store, 1)}
    assert gone[uploaded].is_uploaded
    assert not path.exists()
    copy = store.checkpoint_files(uploaded)
    assert copy is not None
    assert drafter_digest(copy).root == store.get_checkpoint(uploaded).digest
    found = resolve_drafter(f"run:{run_id}@3", settings, store)
    assert drafter_digest(found.path).root == found.digest, "and are what the reference leads to"


def test_nothing_outside_of_a_trainings_own_folder_is_deleted(
    store: MemoryStore, settings: Settings, run_id: str, tmp_path: Path
) -> None:
    """The path is a word in the store, which others may write."""
    (checkpoint, *_) = store.checkpoints(run_id)
    precious = tmp_path / "precious"
    precious.mkdir()
    link = settings.checkpoints_dir / run_id / "link"
    link.symlink_to(precious)
    for path in (
        precious,
        link,
        settings.checkpoints_dir / run_id,
        settings.checkpoints_dir / run_id / ".." / "..",
    ):
        store.models[checkpoint.model_id] = checkpoint.model_copy(update={"path": path})
        assert freed(settings, store) == [], path
        assert free_checkpoints(settings, store, 1) == ()
    assert precious.is_dir()


def test_only_the_named_trainings_are_freed_and_an_unknown_one_is_refused(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    other, _ = train(store, settings)
    assert [held.run_id for held in plan_freeing(settings, store, 1, [run_id]).to_free] == [run_id]
    assert {held.run_id for held in plan_freeing(settings, store, 1, [other]).checkpoints} == {
        other
    }
    with pytest.raises(ConfigError, match=f"found none of {run_id[:8]}$"):
        plan_freeing(settings, store, 1, [run_id, run_id[:8]])


def test_what_a_killed_gc_left_goes_the_next_time(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    folder = settings.checkpoints_dir / run_id
    (folder / "0").rename(folder / ".freed-0")
    assert freed(settings, store) == []
    free_checkpoints(settings, store, 1)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
