"""Which training of the store a command goes on with, or need not do again."""

from pathlib import Path

from harness.drafter.provenance import code_digest
from harness.errors import ConfigError
from harness.settings import Settings, task_id
from harness.tracking import names
from harness.tracking.owner import is_alive
from harness.tracking.reaping import owner_of
from harness.tracking.records import RunStatus, RunSummary
from harness.tracking.store import Store
from harness.training.folders import EPOCHS_DIR, list_epochs

CONFIG_NAME = "train.yaml"
_DIVERGED = "diverged"
FAILED_AGREEMENT = "train agreement"
"""How the reason of a training begins whose checkpoint does not compute what was trained."""


def run_folder(settings: Settings, run_id: str) -> Path:
    """Where a training keeps its job, its log and its epochs."""
    return settings.checkpoints_dir / run_id


def find_finished(store: Store, fingerprint: str) -> RunSummary | None:
    """The newest finished training that would give the same weights, checkpoints included."""
    found = store.find_runs(
        kind=names.KIND_TRAIN,
        tags={names.TAG_FINGERPRINT: fingerprint},
        status=RunStatus.FINISHED,
    )
    return next((run for run in found if store.checkpoints(run.run_id)), None)


def find_interrupted(store: Store, settings: Settings, fingerprint: str) -> RunSummary | None:
    """The newest training of the same fingerprint that stopped with a checkpoint to go on from."""
    found = store.find_runs(kind=names.KIND_TRAIN, tags={names.TAG_FINGERPRINT: fingerprint})
    return next((run for run in found if is_resumable(run, settings)), None)


def is_resumable(run: RunSummary, settings: Settings) -> bool:
    """Whether a training did not finish, nobody works on it, and a whole checkpoint is there."""
    if run.status is RunStatus.FINISHED or _is_worked_on(run) or _is_of_other_code(run):
        return False
    if run.tags.get(names.TAG_FAILURE, "").startswith((_DIVERGED, FAILED_AGREEMENT)):
        return False
    epochs = list_epochs(run_folder(settings, run.run_id) / EPOCHS_DIR)
    return bool(epochs) and epochs[-1].is_resumable


def require_resumable(
    store: Store, settings: Settings, run_id: str, fingerprint: str
) -> RunSummary:
    """The run to go on with.

    Raises:
        ConfigError: It is no training, is finished, still running, or left no checkpoint here.
    """
    run = store.get_run(run_id)
    if run.kind != names.KIND_TRAIN:
        raise ConfigError(f"--resume: expected a training run, {run.name!r} is a {run.kind} run")
    if run.status is RunStatus.FINISHED:
        raise ConfigError(f"--resume: {run.name!r} is finished", "train again without --resume")
    if _is_worked_on(run):
        raise ConfigError(f"--resume: a process still works on {run.name!r}", "stop it first")
    if _is_of_other_code(run):
        raise ConfigError(
            f"--resume: {run.name!r} was begun by code {run.tags[names.TAG_CODE_DIGEST]}, "
            f"this is {code_digest()}: one run is made by one code",
            "launch it from that code, or train again without --resume",
        )
    if not is_resumable(run, settings):
        raise ConfigError(
            f"--resume: expected a whole checkpoint in {run_folder(settings, run_id)}, "
            f"found none to go on from ({run.tags.get(names.TAG_FAILURE, 'no reason recorded')})",
            "train again without --resume",
        )
    if run.tags.get(names.TAG_FINGERPRINT) != fingerprint:
        raise ConfigError(
            f"--resume: {run.name!r} was another training: its configuration, corpus, parent or "
            "the package versions differ",
            "resume without a configuration, or train again without --resume",
        )
    return run


def _is_of_other_code(run: RunSummary) -> bool:
    """Whether a launched task would go on with what another code began; here nobody is asked."""
    begun = run.tags.get(names.TAG_CODE_DIGEST)
    return task_id() is not None and begun not in {None, code_digest()}


def _is_worked_on(run: RunSummary) -> bool:
    owner = owner_of(run)
    return run.status is RunStatus.RUNNING and owner is not None and is_alive(owner) is not False
