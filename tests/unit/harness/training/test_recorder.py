from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter

from harness.errors import CheckError
from harness.tracking import names
from harness.tracking.run import Run
from harness.training.messages import Ended, Saved, Started, Step, Validation
from harness.training.recorder import Recorder

from .conftest import MakePlan

STARTED = Started(
    device="cpu", attention="sdpa", loss_implementation="eager", dtype="float32", num_workers=0,
    num_train_conversations=9, num_val_conversations=1, total_steps=4, first_step=0,
    num_parameters=100, num_trainable=50, draft_vocab_coverage=0.9, num_parent_tensors=0,
)  # fmt: skip


def step(number: int, seconds: float = 0.5) -> Step:
    metrics = {"loss": 4.0 - number, "cond_acc_0": 0.1}
    return Step(step=number, epoch=0, lr=1e-3, metrics=metrics, step_s=seconds, num_tokens=100)


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path)


@pytest.fixture
def run(store: MemoryStore) -> Run:
    return store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)


def test_steps_count_from_one_and_sum_up_to_rates(
    run: Run, store: MemoryStore, make_plan: MakePlan
) -> None:
    seen: list[tuple[str, int, int]] = []
    recorder = Recorder(run, store, make_plan(), lambda *what: seen.append(what), attempt=1)
    recorder.take(STARTED)
    for number in range(4):
        recorder.take(step(number))
    recorder.take(Validation(step=4, epoch=0, metrics={"loss": 1.5, "cond_acc_0": 0.25}))
    recorder.take(Ended(outcome="finished", step=4, peak_memory_bytes=7))
    recorder.log_summary(10.0)
    found = store.get_run(run.run_id)
    assert found.metrics[names.METRIC_STEPS_PER_S] == 2.0
    assert found.metrics[names.METRIC_TOKENS_PER_S] == 200.0
    assert found.metrics[names.METRIC_WALL_TIME_S] == 10.0
    assert found.metrics[names.METRIC_PEAK_MEMORY_BYTES] == 7.0
    assert found.metrics[names.METRIC_VAL_ACCEPTANCE_LENGTH] == 1.25
    assert names.METRIC_CHECKPOINT_BYTES not in found.metrics
    losses = [p for p in store.points[run.run_id] if p.key == names.METRIC_TRAIN_LOSS]
    assert [(p.step, p.value) for p in losses] == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]
    assert seen[-1] == ("training", 4, 4)
    assert found.params["num_trainable"] == "50"


def test_nothing_measured_means_no_rates(run: Run, store: MemoryStore, make_plan: MakePlan) -> None:
    recorder = Recorder(run, store, make_plan(), lambda *_: None, attempt=1)
    recorder.log_summary(3.0)
    assert recorder.summary(3.0) == {names.METRIC_WALL_TIME_S: 3.0}


def test_a_later_attempt_keeps_the_params_and_notes_its_own_in_tags(
    run: Run, store: MemoryStore, make_plan: MakePlan
) -> None:
    Recorder(run, store, make_plan(), lambda *_: None, attempt=1).take(STARTED)
    again = STARTED.model_copy(update={"device": "cuda", "first_step": 2})
    Recorder(run, store, make_plan(), lambda *_: None, attempt=2).take(again)
    found = store.get_run(run.run_id)
    assert found.params["device"] == "cpu"
    assert found.tags["attempt.2.device"] == "cuda"
    assert found.tags["attempt.2.first_step"] == "2"


def test_an_unsound_checkpoint_is_never_recorded(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    path = write_tiny_drafter(tmp_path / "0", eagle_aux_hidden_state_layer_ids=[5, 4, 2])
    recorder = Recorder(run, store, make_plan(), lambda *_: None, attempt=1)
    with pytest.raises(CheckError):
        recorder.take(Saved(epoch=0, step=4, path=path, metrics={"loss": 1.0}))
    assert store.checkpoints(run.run_id) == ()
