import pytest
from fakes.memory_store import MemoryStore

from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.training.resume import (
    find_finished,
    find_interrupted,
    require_resumable,
    run_folder,
)

PRINT = "f" * 64


def start(
    store: MemoryStore,
    settings: Settings,
    status: RunStatus | None,
    *,
    reason: str | None = None,
    has_checkpoint: bool = True,
) -> str:
    run = store.start_run(
        names.KIND_TRAIN,
        "train",
        experiment=names.EXPERIMENT_TRAIN,
        tags={names.TAG_FINGERPRINT: PRINT},
    )
    if has_checkpoint:
        folder = run_folder(settings, run.run_id) / "epochs" / "0"
        folder.mkdir(parents=True)
        (folder / "optimizer_state_dict.pt").touch()
        (folder / "training_state.json").write_text(
            '{"epoch": 0, "local_step": 0, "global_step": 5}'
        )
    if status is not None:
        run.finish(status, reason)
    return run.run_id


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.KILLED])
def test_a_stopped_training_with_a_checkpoint_is_gone_on_with(
    store: MemoryStore, settings: Settings, status: RunStatus
) -> None:
    run_id = start(store, settings, status)
    found = find_interrupted(store, settings, PRINT)
    assert found is not None
    assert found.run_id == run_id
    assert require_resumable(store, settings, run_id, PRINT).run_id == run_id


def test_nothing_is_gone_on_with_that_must_not_be(store: MemoryStore, settings: Settings) -> None:
    start(store, settings, RunStatus.FINISHED)
    start(store, settings, None)
    start(store, settings, RunStatus.FAILED, has_checkpoint=False)
    start(store, settings, RunStatus.FAILED, reason="diverged: the loss is nan")
    assert find_interrupted(store, settings, PRINT) is None
    assert find_interrupted(store, settings, "0" * 64) is None


@pytest.mark.parametrize(
    ("status", "has_checkpoint", "message"),
    [
        (RunStatus.FINISHED, True, "is finished"),
        (None, True, "still works"),
        (RunStatus.FAILED, False, "whole checkpoint"),
    ],
)
def test_resume_says_why_a_run_cannot_be_gone_on_with(
    store: MemoryStore,
    settings: Settings,
    status: RunStatus | None,
    has_checkpoint: bool,
    message: str,
) -> None:
    run_id = start(store, settings, status, has_checkpoint=has_checkpoint)
    with pytest.raises(ConfigError, match=message):
        require_resumable(store, settings, run_id, PRINT)


def test_resume_refuses_another_training(store: MemoryStore, settings: Settings) -> None:
    run_id = start(store, settings, RunStatus.KILLED)
    with pytest.raises(ConfigError, match="another training"):
        require_resumable(store, settings, run_id, "0" * 64)


def test_resume_refuses_a_run_that_trains_nothing(store: MemoryStore, settings: Settings) -> None:
    run = store.start_run(names.KIND_BENCH, "bench", experiment=names.EXPERIMENT_BENCH)
    with pytest.raises(ConfigError, match="is a bench run"):
        require_resumable(store, settings, run.run_id, PRINT)


def test_only_a_finished_training_with_checkpoints_is_reused(
    store: MemoryStore, settings: Settings
) -> None:
    start(store, settings, RunStatus.KILLED)
    start(store, settings, RunStatus.FINISHED)
    assert find_finished(store, PRINT) is None
