"""A training as one run of the store: planned, tested when long, supervised, and rightly closed.

The parent's side. It owns the run and its final status; the child trains and says what happens.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.drafter.checks import require_sound
from harness.errors import WorkError
from harness.settings import SHARED_CORES, Settings, visible_gpus
from harness.tracking import names
from harness.tracking.reaping import reap
from harness.tracking.records import Checkpoint, RunStatus, RunSummary
from harness.tracking.resolve import best_checkpoint
from harness.tracking.run import Run
from harness.tracking.store import Store
from harness.training.folders import (
    EPOCHS_DIR,
    FIGURES_NAME,
    drop_resume_state,
    list_epochs,
)
from harness.training.inputs import build_params, log_inputs, name_parts
from harness.training.messages import Saved
from harness.training.plan import TrainPlan, build_plan, write_job
from harness.training.recorder import Recorded, Recorder
from harness.training.replayed import answer_prompts, build_replay, log_training_figures
from harness.training.resume import (
    find_finished,
    find_interrupted,
    require_resumable,
    run_folder,
)
from harness.training.smoke import (
    LONGEST_UNTESTED_S,
    NUM_CONVERSATIONS,
    PROBE_STEPS,
    require_learning,
    smoke_config,
)
from harness.training.supervise import LOG_NAME, Attempt, supervise

_CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


class TrainRun(Frozen):
    """A finished training."""

    run_id: str
    name: str
    folder: Path
    checkpoints: tuple[Checkpoint, ...]
    best: Checkpoint
    metrics: dict[str, float]
    warnings: tuple[str, ...]
    was_reused: bool
    """An equal training was finished already; nothing was trained."""


class Commission(NamedTuple):
    """What a sweep asks of a training that it starts: where its run belongs, and to be told."""

    parent_run_id: str
    experiment: str
    tags: Mapping[str, object]
    on_run: Callable[[str], None]
    """Told the id of the run once it is open."""
    on_checkpoint: Callable[[Recorded], None]
    """Told each checkpoint once it is in the store."""


def run_training(
    config: TrainConfig,
    settings: Settings,
    store: Store,
    progress: ProgressFn,
    *,
    is_reusing: bool = False,
    is_fresh: bool = False,
    resume_run_id: str | None = None,
    commission: Commission | None = None,
) -> TrainRun:
    """Trains a drafter, going on with an interrupted training that would give the same weights.

    Args:
        config: What to train.
        settings: Where verifiers, checkpoints and the store are.
        store: The open store.
        progress: Told how far it is.
        is_reusing: Return the finished training that would give the same weights, if there is one.
        is_fresh: Do not go on with an interrupted one.
        resume_run_id: Go on with this run.
        commission: Of the sweep that this training is a trial of.

    Raises:
        ConfigError: The configuration, the corpus or a reference makes no sense.
        CheckError: An input is not what it should be, or the smoke training did not learn.
        WorkError: The training failed; the run says why.
        KeyboardInterrupt: It was asked to stop, and did.
    """
    plan = build_plan(config, settings, store, progress)
    reap(store)
    try:
        if is_reusing and (finished := find_finished(store, plan.fingerprint)):
            return _describe(finished, settings, store, plan, was_reused=True)
        earlier = _find_earlier(plan, settings, store, resume_run_id, is_fresh=is_fresh)
        if config.smoke == "always" and earlier is None:
            run_smoke(plan, settings, store, progress)
        run = _open_run(plan, store, earlier, commission)
        with run:
            if commission is not None:
                commission.on_run(run.run_id)
            _train(run, plan, settings, store, progress, earlier=earlier, commission=commission)
    finally:
        if plan.prepared is not None:
            shutil.rmtree(plan.prepared.path, ignore_errors=True)
    return _describe(store.get_run(run.run_id), settings, store, plan, was_reused=False)


def run_smoke(plan: TrainPlan, settings: Settings, store: Store, progress: ProgressFn) -> str:
    """Trains on ten conversations and returns the run's id when all was as it should be.

    Raises:
        CheckError: The loss did not fall, or the checkpoint is unsound or does not read back.
        WorkError: The training failed.
    """
    small = plan.model_copy(update={"config": smoke_config(plan.config)})
    name = names.base_run_name(names.KIND_SMOKE, name_parts(small))
    with store.start_run(
        names.KIND_SMOKE, name, experiment=names.EXPERIMENT_TRAIN, tags=_tags(small)
    ) as run:
        folder = run_folder(settings, run.run_id)
        changes = {"max_conversations": NUM_CONVERSATIONS, "is_reloading": True}
        job_path = write_job(small, folder, **changes)
        log_inputs(run, small, folder, store)
        recorder = Recorder(run, store, small, _renamed(progress, "smoke"), attempt=1)
        attempt = supervise(job_path, recorder, _environment(small))
        _close_logs(run, folder)
        _require_finished(run, attempt)
        require_learning(recorder)
        for epoch in list_epochs(folder / EPOCHS_DIR)[-1:]:
            require_sound(epoch.path, plan.verifier, deep=True)
        drop_resume_state(folder / EPOCHS_DIR, keep_last=False)
    return run.run_id


def _train(
    run: Run,
    plan: TrainPlan,
    settings: Settings,
    store: Store,
    progress: ProgressFn,
    *,
    earlier: RunSummary | None,
    commission: Commission | None,
) -> None:
    """One attempt, or two when the first one's estimate asks for a smoke test."""
    folder = run_folder(settings, run.run_id)
    number = int(earlier.tags.get(names.TAG_ATTEMPT, "1")) + 1 if earlier else 1
    run.set_tags({names.TAG_ATTEMPT: number})
    if earlier is None:
        log_inputs(run, plan, folder, store)
        run.log_params(build_params(plan))
    is_tested = plan.config.smoke != "auto" or earlier is not None
    probe = None if is_tested else PROBE_STEPS
    job_path = write_job(plan, folder, probe_steps=probe)
    # Before the child starts: a large verifier may need the whole machine to answer.
    replay = build_replay(plan, answer_prompts(plan, settings, progress))
    record = partial(
        Recorder,
        run,
        store,
        plan,
        progress,
        attempt=number,
        replay=replay,
        on_checkpoint=commission.on_checkpoint if commission else None,
    )
    recorder = record()
    _register_missed(recorder, store, run.run_id, folder)
    longest = None if is_tested else LONGEST_UNTESTED_S
    nproc = plan.config.nproc
    attempt = supervise(job_path, recorder, _environment(plan), longest_s=longest, nproc=nproc)
    if attempt.is_too_long:
        run_smoke(plan, settings, store, progress)
        recorder = record()
        _register_missed(recorder, store, run.run_id, folder)  # saved while it was being stopped
        attempt = supervise(write_job(plan, folder), recorder, _environment(plan), nproc=nproc)
    _close_logs(run, folder)
    first_step = recorder.started.first_step if recorder.started else 0
    log_training_figures(run, store, recorder.losses, first_step)
    _require_finished(run, attempt)
    drop_resume_state(folder / EPOCHS_DIR, keep_last=False)


def _register_missed(recorder: Recorder, store: Store, run_id: str, folder: Path) -> None:
    """Records checkpoints that the last attempt's child saved after its parent was gone."""
    known = {checkpoint.epoch for checkpoint in store.checkpoints(run_id)}
    for epoch in list_epochs(folder / EPOCHS_DIR):
        figures = epoch.path / FIGURES_NAME
        if epoch.local_step == 0 and epoch.epoch not in known and figures.is_file():
            metrics = json.loads(figures.read_text())
            recorder.take(
                Saved(epoch=epoch.epoch, step=epoch.step, path=epoch.path, metrics=metrics)
            )
            recorder.finish()


def _find_earlier(
    plan: TrainPlan, settings: Settings, store: Store, run_id: str | None, *, is_fresh: bool
) -> RunSummary | None:
    if run_id is not None:
        return require_resumable(store, settings, run_id, plan.fingerprint)
    return None if is_fresh else find_interrupted(store, settings, plan.fingerprint)


def _open_run(
    plan: TrainPlan, store: Store, earlier: RunSummary | None, commission: Commission | None
) -> Run:
    if earlier is not None:
        return store.resume_run(earlier.run_id)
    name = plan.config.name or names.base_run_name(names.KIND_TRAIN, name_parts(plan))
    return store.start_run(
        names.KIND_TRAIN,
        name,
        experiment=commission.experiment if commission else names.EXPERIMENT_TRAIN,
        tags={**_tags(plan), **(commission.tags if commission else {})},
        parent_run_id=commission.parent_run_id if commission else None,
    )


def _tags(plan: TrainPlan) -> dict[str, str]:
    return {names.TAG_FINGERPRINT: plan.fingerprint}


def _close_logs(run: Run, folder: Path) -> None:
    log_path = folder / LOG_NAME
    if log_path.is_file():
        run.log_file(log_path, "logs")


def _require_finished(run: Run, attempt: Attempt) -> None:
    """Gives the run its final status; anything but FINISHED stops the caller."""
    status, reason = attempt.outcome
    if status is RunStatus.FINISHED:
        return
    run.finish(status, reason)
    if status is RunStatus.KILLED:
        raise KeyboardInterrupt
    raise WorkError(
        f"training {run.name!r} failed: {reason}",
        f"its log is the artifact logs/{LOG_NAME} of run {run.run_id}; the same command goes on "
        "from the last checkpoint",
    )


def _environment(plan: TrainPlan) -> dict[str, str]:
    if plan.config.device == "cpu":
        return SHARED_CORES | _CPU_ONLY
    gpus = visible_gpus()[: plan.config.nproc] if plan.config.nproc > 1 else ()
    return SHARED_CORES | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})


def _renamed(progress: ProgressFn, label: str) -> ProgressFn:
    return lambda text, done, total: progress(f"{label}: {text}", done, total)


def _describe(
    run: RunSummary, settings: Settings, store: Store, plan: TrainPlan, *, was_reused: bool
) -> TrainRun:
    checkpoints = store.checkpoints(run.run_id)
    return TrainRun(
        run_id=run.run_id,
        name=run.name,
        folder=run_folder(settings, run.run_id),
        checkpoints=checkpoints,
        best=best_checkpoint(checkpoints),
        metrics=run.metrics,
        warnings=plan.warnings,
        was_reused=was_reused,
    )
