"""A trial's process: one training as a run of the store, told epoch by epoch as JSON lines.

Started as `python -m harness.sweep.trial SPEC` by the coordinator, whose end it notices.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from eval.errors import EvalError
from harness.digests import write_atomic
from harness.errors import ConfigError, HarnessError, TrackingError
from harness.settings import Settings, number_gpus, share_cores
from harness.sweep.architecture import architecture_of
from harness.sweep.causes import Causes
from harness.sweep.records import (
    OWNER_NAME,
    Epoch,
    Event,
    Failed,
    RunOpened,
    Stopped,
    Trained,
    TrialSpec,
    events_path,
)
from harness.tracking import names
from harness.tracking.owner import current_owner
from harness.tracking.records import RunStatus, RunSummary
from harness.tracking.resolve import best_checkpoint
from harness.tracking.store import Store, open_store
from harness.training.recorder import Recorded
from harness.training.resume import is_resumable
from harness.training.run import Commission, run_training

_STORE_PATIENCE_S = 300.0
_STORE_PAUSE_S = 5.0


class Reporter:
    """Appends events to the attempt's file; each is on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, event: Event) -> None:
        """Writes one event."""
        with self._path.open("ab") as stream:
            stream.write(event.model_dump_json().encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _commission(spec: TrialSpec, reporter: Reporter) -> Commission:
    """The training's run is a child of the sweep's, and each of its checkpoints is told."""
    return Commission(
        parent_run_id=spec.parent_run_id,
        experiment=names.EXPERIMENT_SWEEP,
        tags={
            names.TAG_SWEEP_ID: spec.sweep_id,
            names.TAG_SWEEP_NAME: spec.sweep_name,
            names.TAG_TRIAL: spec.number,
        },
        on_run=lambda run_id: reporter.tell(RunOpened(run_id=run_id)),
        on_checkpoint=lambda recorded: reporter.tell(
            as_epoch(recorded, spec.train.checkpoint_freq)
        ),
    )


def as_epoch(recorded: Recorded, checkpoint_freq: float) -> Epoch:
    """What the sweep is told of a checkpoint.

    Args:
        recorded: The checkpoint.
        checkpoint_freq: Epochs per checkpoint.
    """
    saved, replayed = recorded.saved, recorded.replayed
    domain = replayed.in_domain if replayed else None
    return Epoch(
        epoch=saved.epoch,
        part=saved.part,
        step=saved.step,
        resource=round((saved.epoch + saved.part) / min(checkpoint_freq, 1.0)),
        model_id=recorded.model_id,
        architecture=architecture_of(saved.path),
        val_loss=saved.metrics.get("loss"),
        acceptance_length=domain.walk.value if domain and domain.walk else None,
        by_prompt=domain.walk_by_conversation if domain else {},
    )


def main(spec_path: Path) -> int:
    """Runs the attempt; the exit code is 0 when the training is finished."""
    write_atomic(spec_path.parent / OWNER_NAME, current_owner().model_dump_json())
    spec = TrialSpec.model_validate_json(spec_path.read_bytes())
    threading.Thread(target=_follow_coordinator, daemon=True).start()
    reporter = Reporter(events_path(spec_path.parent, spec.attempt))
    spec.settings.checkpoints_dir.mkdir(parents=True, exist_ok=True)
    causes = Causes(spec.settings.checkpoints_dir)
    try:
        reporter.tell(_train(spec, reporter))
    except KeyboardInterrupt:
        reporter.tell(Stopped())
        return 130
    except (HarnessError, EvalError, OSError, MemoryError) as error:
        reporter.tell(Failed(reason=causes.classify(error), detail=str(error)[:500]))
        return 1
    return 0


def open_patiently(
    settings: Settings,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Store:
    """Opens the store, which may be away for a while: the coordinator found it there.

    Raises:
        TrackingError: It did not answer for five minutes.
    """
    deadline = clock() + _STORE_PATIENCE_S
    while True:
        try:
            return open_store(settings)
        except TrackingError:
            if clock() >= deadline:
                raise
            sleep(_STORE_PAUSE_S)


def _train(spec: TrialSpec, reporter: Reporter) -> Trained:
    store = open_patiently(spec.settings)
    run_id = _finished_or_train(spec, store, _commission(spec, reporter))
    run = store.get_run(run_id)
    best = best_checkpoint(store.checkpoints(run_id))
    parameters = run.params.get("num_parameters", "")
    return Trained(
        run_id=run_id,
        model_id=best.model_id,
        path=best.path,
        architecture=architecture_of(best.path) if best.path.is_dir() else None,
        epoch=best.epoch,
        val_loss=best.metrics.get(names.METRIC_VAL_LOSS),
        acceptance_length=best.metrics.get(names.METRIC_VAL_ACCEPTANCE_LENGTH),
        num_parameters=int(parameters) if parameters.isdecimal() else None,
        train_s=training_seconds(run),
    )


def training_seconds(run: RunSummary) -> float | None:
    """What all steps of a training take at its pace, however often it was begun again.

    Without a pace, as where the last attempt had no step to do, that attempt's own seconds.
    """
    num_steps, pace = run.params.get("total_steps", ""), run.metrics.get(names.METRIC_STEPS_PER_S)
    if pace and num_steps.isdecimal():
        return int(num_steps) / pace
    return run.metrics.get(names.METRIC_WALL_TIME_S)


def _finished_or_train(spec: TrialSpec, store: Store, commission: Commission) -> str:
    """The run of the training: finished by an earlier attempt, gone on with, or new."""
    train = partial(
        run_training,
        spec.train,
        spec.settings,
        store,
        lambda *_: None,
        is_fresh=True,
        commission=commission,
    )
    earlier = store.get_run(spec.run_id) if spec.run_id else None
    if earlier is not None and earlier.status is RunStatus.FINISHED:
        return earlier.run_id
    if earlier is not None and is_resumable(earlier, spec.settings):
        with contextlib.suppress(ConfigError):  # packages or total_seq_len changed since
            return train(resume_run_id=earlier.run_id).run_id
    return train().run_id


def _follow_coordinator() -> None:
    """Waits for the end of the pipe that the coordinator holds, then stops as if interrupted."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # from here, or through a supervisor elsewhere
        signal.signal(number, signal.default_int_handler)
    share_cores()
    number_gpus()
    sys.exit(main(Path(sys.argv[1])))
