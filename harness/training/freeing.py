"""Which checkpoints' files may go over the whole store, and making them go: `harness gc`.

Stays: the best of each training, its last, every one with an alias, what is being measured, and the
parents of what stays.
What is deleted is the local folder alone: manifest, figures and uploaded copies are kept.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.reaping import open_runs
from harness.tracking.records import Checkpoint, RunStatus, RunSummary
from harness.tracking.registry import promotion_lock
from harness.tracking.store import Store
from harness.training.checkpoints import TAG_RETAINED, plan_retention

_TRASH = ".freed-"


class Held(Frozen):
    """A checkpoint whose files are on disk, and what becomes of them."""

    model_id: str
    run_id: str
    run_name: str
    epoch: int | None
    path: Path
    num_bytes: int
    """Of the whole folder, the trainer's own state included."""
    kept_because: str | None
    """None: its files may go."""
    is_uploaded: bool


class Retention(Frozen):
    """Every checkpoint with files on disk."""

    checkpoints: tuple[Held, ...]

    @property
    def to_free(self) -> tuple[Held, ...]:
        """Those whose files may go."""
        return tuple(held for held in self.checkpoints if held.kept_because is None)

    @property
    def num_bytes_to_free(self) -> int:
        """Of all those."""
        return sum(held.num_bytes for held in self.to_free)


def plan_freeing(
    settings: Settings, store: Store, keep_best: int, run_ids: Sequence[str] = ()
) -> Retention:
    """Looks at every training and says which files may go, and why the others stay.

    Args:
        settings: Names the folder that files are deleted in; outside of it nothing is.
        store: The open store.
        keep_best: How many of each training's best stay.
        run_ids: Only these trainings; none: all.

    Raises:
        ConfigError: One of them has no folder here.
    """
    runs = {run.run_id: run for run in _runs_on_disk(settings, store)}
    if absent := sorted(set(run_ids) - runs.keys()):
        raise ConfigError(
            f"expected trainings with a folder in {settings.checkpoints_dir}, found none of "
            f"{', '.join(absent)}",
            "give each run's whole id: the folders are named after them",
        )
    found = {run_id: store.checkpoints(run_id) for run_id in runs}
    reasons = _reasons(found, runs, {**_measured(store), **_aliased(store)}, keep_best)
    wanted = set(run_ids or runs)
    held = [
        _held(checkpoint, runs[run_id], reasons.get(checkpoint.model_id), settings)
        for run_id, checkpoints in found.items()
        if run_id in wanted
        for checkpoint in checkpoints
        if checkpoint.path.is_dir()
    ]
    return Retention(checkpoints=tuple(held))


def free_checkpoints(
    settings: Settings,
    store: Store,
    keep_best: int,
    run_ids: Sequence[str] = (),
    *,
    progress: ProgressFn | None = None,
) -> tuple[Held, ...]:
    """Deletes what the plan says now, under the lock that promotions take; returns what went.

    A folder is renamed before it is deleted, so that a checkpoint is whole or gone.
    """
    with promotion_lock(settings):
        _empty_trash(settings)
        gone = plan_freeing(settings, store, keep_best, run_ids).to_free
        for number, held in enumerate(gone, start=1):
            store.set_model_tags(held.model_id, {TAG_RETAINED: False})
            trash = held.path.with_name(f"{_TRASH}{held.path.name}")
            held.path.rename(trash)
            shutil.rmtree(trash)
            if progress:
                progress("freeing checkpoints", number, len(gone))
    return gone


def _runs_on_disk(settings: Settings, store: Store) -> Iterator[RunSummary]:
    """The trainings that have a folder here; a folder that the store knows nothing of is left."""
    home = settings.checkpoints_dir
    for folder in sorted(home.iterdir()) if home.is_dir() else ():
        try:
            if folder.is_dir():
                yield store.get_run(folder.name)
        except ConfigError:
            continue


def _reasons(
    found: Mapping[str, Sequence[Checkpoint]],
    runs: Mapping[str, RunSummary],
    known: Mapping[str, str],
    keep_best: int,
) -> dict[str, str]:
    """Model id to why its files stay."""
    reasons = dict(known)
    for run_id, checkpoints in found.items():
        may_go = {c.model_id for c in plan_retention(checkpoints, keep_best, frozenset())}
        is_running = runs[run_id].status == RunStatus.RUNNING
        for checkpoint in checkpoints:
            if is_running:
                reasons.setdefault(checkpoint.model_id, "its training is not closed")
            elif checkpoint.model_id not in may_go:
                reasons.setdefault(checkpoint.model_id, "among the best, or the last")
    # Of each training the last checkpoint stays, or the first is on its way: so does its parent.
    parents = {run.tags.get(names.TAG_FINETUNE_PARENT_DIGEST) for run in runs.values()}
    for checkpoints in found.values():
        for checkpoint in checkpoints:
            if checkpoint.digest in parents:
                reasons.setdefault(checkpoint.model_id, "the parent of one that stays")
    return reasons


def _measured(store: Store) -> dict[str, str]:
    """What a bench or replay that is not known to be dead works on."""
    return {
        model_id: f"{run.name} works on it"
        for run in open_runs(store)
        if run.verdict != "gone"
        for model_id in run.model_inputs
    }


def _aliased(store: Store) -> dict[str, str]:
    registry = store.registry
    return {
        version.model_id: f"{', '.join(version.aliases)} of {name}"
        for name in registry.names()
        for version in registry.versions(name)
        if version.aliases
    }


def _held(checkpoint: Checkpoint, run: RunSummary, reason: str | None, settings: Settings) -> Held:
    path, home = checkpoint.path, settings.checkpoints_dir.resolve()
    # The path is a word in the store: nothing is deleted but a training's own epoch.
    own = home / run.run_id
    is_own = path.resolve().is_relative_to(own) and path.resolve() != own and not path.is_symlink()
    if not is_own:
        reason = reason or f"not in {home / run.run_id}"
    return Held(
        model_id=checkpoint.model_id,
        run_id=run.run_id,
        run_name=run.name,
        epoch=checkpoint.epoch,
        path=path,
        num_bytes=sum(file.lstat().st_size for file in _files(path)) if is_own else 0,
        kept_because=reason,
        is_uploaded=checkpoint.is_uploaded,
    )


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _empty_trash(settings: Settings) -> None:
    """What a process that was killed in the middle left behind."""
    for trash in settings.checkpoints_dir.glob(f"*/**/{_TRASH}*"):
        shutil.rmtree(trash)
