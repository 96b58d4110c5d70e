from collections.abc import Generator
from pathlib import Path

import pytest
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter

from eval.agreement import Agreement, StepAgreement
from eval.result import Interval
from harness.errors import CheckError
from harness.tracking import names
from harness.tracking.run import Run
from harness.tracking.waterfall import read_gap
from harness.training.messages import Ended, Saved, Started, Step, Validation
from harness.training.recorder import Recorded, Recorder
from harness.training.validation import CheckpointReplay, Lengths, require_agreement

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
    assert found.metrics[names.METRIC_VAL_ESTIMATED_LENGTH] == 1.25
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


def lengths(walk: float) -> Lengths:
    return Lengths(
        all_positions=Interval(value=1.5),
        walk=Interval(value=walk),
        walk_by_conversation={"row 1": walk},
    )


def replayed(
    walk: float | None, *, trained: float = 0.5, share_of_one: float = 0.1
) -> CheckpointReplay:
    step = StepAgreement(step=0, trained=trained, replayed=0.5, total=100, tolerance=0.02)
    return CheckpointReplay(
        k=1,
        agreement=Agreement(
            steps=(step,), share_replayed=1.0, share_of_one=share_of_one, share_of_one_said=0.05
        ),
        share_unequal=0.0 if walk else 0.4,
        in_domain=lengths(walk) if walk else None,
        on_prompts=lengths(1.25),
        replay_s=0.5,
    )


class Replays:
    """A replay in three slices, its result given."""

    def __init__(
        self, *walks: float | None, trained: float = 0.5, share_of_one: float = 0.1
    ) -> None:
        self._walks = list(walks)
        self._trained, self._share_of_one = trained, share_of_one
        self.dtypes: list[str] = []

    def __call__(self, saved: Saved, dtype: str) -> Generator[None, None, CheckpointReplay]:
        self.dtypes.append(dtype)
        yield
        yield
        found = replayed(self._walks.pop(0), trained=self._trained, share_of_one=self._share_of_one)
        require_agreement(found.agreement, saved)
        return found


def saved(tmp_path: Path, epoch: int, accuracy: float = 0.6) -> Saved:
    path = write_tiny_drafter(tmp_path / str(epoch), seed=epoch)
    metrics = {"loss": 1.0, "cond_acc_0": accuracy, "full_acc_0": accuracy}
    return Saved(epoch=epoch, step=epoch + 1, path=path, metrics=metrics)


def make_recorder(
    run: Run, store: MemoryStore, make_plan: MakePlan, replay: Replays, **changes: object
) -> Recorder:
    plan = make_plan(eval_prompts="eval.jsonl", **changes)
    return Recorder(run, store, plan, lambda *_: None, attempt=1, replay=replay)


def test_a_checkpoint_is_recorded_with_all_figures_when_its_replay_is_done(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    replay = Replays(1.375)
    recorder = make_recorder(run, store, make_plan, replay)
    recorder.take(STARTED)
    recorder.take(saved(tmp_path, 0))
    assert [recorder.work(), recorder.work()] == [True, True]
    assert store.checkpoints(run.run_id) == ()
    assert recorder.work() is False
    (checkpoint,) = store.checkpoints(run.run_id)
    assert checkpoint.metrics[names.METRIC_VAL_ACCEPTANCE_LENGTH] == 1.375
    assert checkpoint.metrics[names.METRIC_VAL_EVERYWHERE_LENGTH] == 1.5
    assert checkpoint.metrics[names.METRIC_VAL_ESTIMATED_LENGTH] == pytest.approx(1.6)
    assert checkpoint.metrics[names.METRIC_EVAL_ACCEPTANCE_LENGTH] == 1.25
    curve = [p for p in store.points[run.run_id] if p.key == names.METRIC_VAL_ACCEPTANCE_LENGTH]
    assert (curve[-1].step, curve[-1].value) == (1, 1.375)
    assert store.get_run(run.run_id).metrics[names.METRIC_REPLAY_S] == 0.5
    assert replay.dtypes == ["float32"]
    gap = read_gap(store, run.run_id)
    assert gap is not None
    assert [step.name for step in gap.checkpoints[0].steps] == [
        "definition", "walk in domain", "domain", "walk",
    ]  # fmt: skip


def test_a_listener_is_told_each_checkpoint_that_is_in_the_store_before_its_files_may_go(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    told: list[tuple[int | None, float, bool]] = []

    def listen(recorded: Recorded) -> None:
        assert recorded.model_id
        found = store.get_checkpoint(recorded.model_id)
        assert recorded.replayed
        assert recorded.replayed.in_domain
        assert recorded.saved.path == found.path
        walk = recorded.replayed.in_domain.walk_by_conversation["row 1"]
        assert found.metrics[names.METRIC_VAL_ACCEPTANCE_LENGTH] == walk
        told.append((found.epoch, walk, found.path.is_dir()))

    plan, replay = make_plan(keep_best=1), Replays(1.5, 1.2, 1.3)
    recorder = Recorder(
        run, store, plan, lambda *_: None, attempt=1, replay=replay, on_checkpoint=listen
    )
    for epoch in range(3):
        recorder.take(saved(tmp_path, epoch))
    recorder.finish()
    assert told == [(0, 1.5, True), (1, 1.2, True), (2, 1.3, True)]


def test_a_part_of_an_epoch_is_replayed_told_and_removed_but_not_recorded(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    told: list[tuple[str | None, bool]] = []
    recorder = Recorder(
        run, store, make_plan(), lambda *_: None, attempt=1, replay=Replays(1.25),
        on_checkpoint=lambda recorded: told.append(
            (recorded.model_id, recorded.saved.path.is_dir())
        ),
    )  # fmt: skip
    part = saved(tmp_path, 0).model_copy(update={"part": 0.5, "metrics": {}})
    recorder.take(part)
    recorder.finish()
    recorder.flush()
    assert told == [(None, True)]
    assert not part.path.exists()
    assert store.checkpoints(run.run_id) == ()
    assert store.get_run(run.run_id).metrics[names.METRIC_VAL_ACCEPTANCE_LENGTH] == 1.25
    assert recorder.last_saved_loss is None


def test_the_next_checkpoint_waits_for_the_replay_of_the_last(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    recorder = make_recorder(run, store, make_plan, Replays(1.5, 1.2, 1.3), keep_best=1)
    for epoch in range(3):
        recorder.take(saved(tmp_path, epoch, accuracy=0.1 * (epoch + 1)))
        assert [c.epoch for c in store.checkpoints(run.run_id)] == list(range(epoch))
    recorder.finish()
    # The estimate would have kept the last alone; the walk keeps the first.
    assert [path.name for path in sorted(tmp_path.glob("[0-9]"))] == ["0", "2"]


def test_a_checkpoint_that_computes_something_else_is_never_recorded(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    recorder = make_recorder(run, store, make_plan, Replays(1.5, trained=0.6))
    recorder.take(saved(tmp_path, 0))
    with pytest.raises(CheckError) as caught:
        recorder.finish()
    assert caught.value.message == (
        "train agreement: the checkpoint of epoch 0 does not compute what was trained, step 0: "
        "trained 0.6000, replayed from the file 0.5000, tolerance 0.0200 (100 positions)"
    )
    assert "norm_before_residual" in (caught.value.hint or "")
    assert store.checkpoints(run.run_id) == ()


def test_a_checkpoint_that_cannot_be_judged_is_recorded_and_the_run_says_so(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    recorder = make_recorder(run, store, make_plan, Replays(1.0, trained=0.15, share_of_one=0.45))
    recorder.take(saved(tmp_path, 0))
    recorder.finish()
    assert [checkpoint.epoch for checkpoint in store.checkpoints(run.run_id)] == [0]
    told = store.get_run(run.run_id).tags[names.TAG_NOT_JUDGED]
    assert told == "epoch 0: the drafter says one token at 45% of the positions"


def test_answers_that_are_not_the_verifiers_own_leave_the_walk_unknown(
    run: Run, store: MemoryStore, make_plan: MakePlan, tmp_path: Path
) -> None:
    recorder = make_recorder(run, store, make_plan, Replays(None))
    recorder.take(saved(tmp_path, 0))
    recorder.finish()
    (checkpoint,) = store.checkpoints(run.run_id)
    assert names.METRIC_VAL_ACCEPTANCE_LENGTH not in checkpoint.metrics
    assert store.get_run(run.run_id).tags[names.TAG_NOT_GREEDY] == "40.0% of the validation answers"
