"""A trial's process: one training as a run of the store, told epoch by epoch as JSON lines.

Started as `python -m harness.sweep.trial SPEC` by the coordinator, whose end it notices.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from eval.errors import EvalError
from harness.digests import write_atomic
from harness.errors import ConfigError, HarnessError
from harness.settings import Settings, share_cores
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
from harness.tracking.records import Checkpoint, RunStatus, RunSummary
from harness.tracking.resolve import best_checkpoint
from harness.tracking.run import Run
from harness.tracking.store import Store, open_store
from harness.training.resume import is_resumable
from harness.training.run import run_training


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


class TrialStore:
    """The store as a trial's training sees it: its run is a child of the sweep's.

    What the training records of a checkpoint goes to the store first and is told afterwards.
    """

    def __init__(self, store: Store, spec: TrialSpec, reporter: Reporter) -> None:
        self._store, self._spec, self._reporter = store, spec, reporter
        self._replays: dict[str, float | None] = {}
        self._replayer: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def start_run(
        self,
        kind: str,
        name: str,
        *,
        experiment: str,
        tags: Mapping[str, object] | None = None,
        parent_run_id: str | None = None,
    ) -> Run:
        """Starts the training's run below the sweep's; a smoke test's is its own."""
        if kind != names.KIND_TRAIN:
            return self._store.start_run(
                kind, name, experiment=experiment, tags=tags, parent_run_id=parent_run_id
            )
        own = {
            names.TAG_SWEEP_ID: self._spec.sweep_id,
            names.TAG_SWEEP_NAME: self._spec.sweep_name,
            names.TAG_TRIAL: self._spec.number,
        }
        run = self._store.start_run(
            kind,
            name,
            experiment=names.EXPERIMENT_SWEEP,
            tags={**(tags or {}), **own},
            parent_run_id=self._spec.parent_run_id,
        )
        self._reporter.tell(RunOpened(run_id=run.run_id))
        return run

    def log_model_metrics(
        self,
        model_id: str,
        run_id: str,
        metrics: Mapping[str, float],
        dataset_name: str | None = None,
        dataset_digest: str | None = None,
    ) -> None:
        """Records a checkpoint's figures, a replay's among them, and tells them."""
        if model_id in self._replays:
            self._store.log_model_metrics(model_id, run_id, metrics, dataset_name, dataset_digest)
            return
        checkpoint = self._store.get_checkpoint(model_id)
        length, by_prompt = self._replay(checkpoint)
        # At one K for all trials: it ranks the checkpoints of this training, too.
        own = {} if length is None else {names.METRIC_VAL_ACCEPTANCE_LENGTH: length}
        figures = {**metrics, **own}
        self._store.log_model_metrics(model_id, run_id, figures, dataset_name, dataset_digest)
        self._reporter.tell(
            Epoch(
                epoch=0 if checkpoint.epoch is None else checkpoint.epoch,
                step=checkpoint.step,
                model_id=model_id,
                architecture=_architecture(checkpoint.path),
                val_loss=metrics.get(names.METRIC_VAL_LOSS),
                acceptance_length=length,
                by_prompt=by_prompt,
            )
        )

    def acceptance_of(self, checkpoint: Checkpoint) -> float | None:
        """The replayed acceptance length of a checkpoint."""
        if checkpoint.model_id not in self._replays:
            self._replay(checkpoint)
        return self._replays[checkpoint.model_id]

    def _replay(self, checkpoint: Checkpoint) -> tuple[float | None, dict[str, float]]:
        if not self._spec.is_replaying:
            self._replays[checkpoint.model_id] = None
            return None, {}
        if self._replayer is None:
            # Late: torch takes seconds and 300 MB, which the trainer's start need not wait for.
            from harness.sweep.acceptance import Replayer  # noqa: PLC0415

            self._replayer = Replayer(self._spec.train, self._spec.settings, self._spec.k)
        length, by_prompt = self._replayer.replay(checkpoint.path)
        self._replays[checkpoint.model_id] = length
        return length, by_prompt


def main(spec_path: Path) -> int:
    """Runs the attempt; the exit code is 0 when the training is finished."""
    write_atomic(spec_path.parent / OWNER_NAME, current_owner().model_dump_json())
    spec = TrialSpec.model_validate_json(spec_path.read_bytes())
    threading.Thread(target=_follow_coordinator, daemon=True).start()
    reporter = Reporter(events_path(spec_path.parent, spec.attempt))
    causes = Causes()
    try:
        reporter.tell(_train(spec, reporter))
    except KeyboardInterrupt:
        reporter.tell(Stopped())
        return 130
    except (HarnessError, EvalError, OSError, MemoryError) as error:
        reporter.tell(Failed(reason=causes.classify(error), detail=str(error)[:500]))
        return 1
    return 0


def _train(spec: TrialSpec, reporter: Reporter) -> Trained:
    store = open_store(spec.settings)
    own = TrialStore(store, spec, reporter)
    run_id = _finished_or_train(spec, store, own)
    run = store.get_run(run_id)
    best = best_checkpoint(store.checkpoints(run_id))
    parameters = run.params.get("num_parameters", "")
    return Trained(
        run_id=run_id,
        model_id=best.model_id,
        path=best.path,
        architecture=_architecture(best.path),
        epoch=best.epoch,
        val_loss=best.metrics.get(names.METRIC_VAL_LOSS),
        acceptance_length=own.acceptance_of(best),
        num_parameters=int(parameters) if parameters.isdecimal() else None,
        train_s=run.metrics.get(names.METRIC_WALL_TIME_S),
    )


def _finished_or_train(spec: TrialSpec, store: Store, own: TrialStore) -> str:
    """The run of the training: finished by an earlier attempt, gone on with, or new."""
    earlier = store.get_run(spec.run_id) if spec.run_id else None
    if earlier is not None and earlier.status is RunStatus.FINISHED:
        return earlier.run_id
    if earlier is not None and is_resumable(earlier, spec.settings):
        try:
            return _run(spec, own, earlier)
        except ConfigError:  # another training since: packages or total_seq_len changed
            pass
    return _run(spec, own, None)


def _run(spec: TrialSpec, own: TrialStore, earlier: RunSummary | None) -> str:
    settings: Settings = spec.settings
    trained = run_training(
        spec.train,
        settings,
        cast("Store", own),
        lambda *_: None,
        is_fresh=earlier is None,
        resume_run_id=earlier.run_id if earlier else None,
    )
    return trained.run_id


def _architecture(path: Path) -> str | None:
    """Equal for drafters that one engine can serve in turn; None when the files are gone."""
    return architecture_of(path) if path.is_dir() else None


def _follow_coordinator() -> None:
    """Waits for the end of the pipe that the coordinator holds, then stops as if interrupted."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    share_cores()
    sys.exit(main(Path(sys.argv[1])))
