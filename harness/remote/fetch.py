"""Brings home what a job made: ended runs into this project's store, checkpoints beside them."""

import os
import shutil
from pathlib import Path

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.drafter.drafter import drafter_digest
from harness.errors import CheckError
from harness.remote.host import Host
from harness.remote.records import SNAPSHOT_DIR, RemoteJob
from harness.remote.ship import ask_job
from harness.settings import Settings, load_settings
from harness.tracking.embedded import DATABASE, recorded_root
from harness.tracking.merge import Merged, merge_store
from harness.tracking.migrate import Place, find_place
from harness.tracking.relocate import relocate_store
from harness.tracking.store import open_store

_FOLDERS = ("sweeps", "bench", "replay", "corpora")
_MARK = ".remote-job"
_MIRRORED = ("--delete", f"--exclude={DATABASE}*", "--exclude=*.lock", "--exclude=/remote")


class Fetched(Frozen):
    """What a call brought."""

    merged: Merged | None
    """None where the job wrote to a server of its own accord."""
    folders: tuple[str, ...]
    """Sweeps, benches, replays and corpora, below `mlruns`."""


def find_target(settings: Settings, database: str | None) -> Place:
    """This project's store, as something to bring runs into.

    Raises:
        ConfigError: It is a server, and the database behind it is not named.
    """
    reference = str(settings.mlruns_dir) if settings.is_embedded else settings.tracking_uri
    return find_place(reference, settings, database)


def fetch(host: Host, job: RemoteJob, target: Place, folder: Path, progress: ProgressFn) -> Fetched:
    """Brings what has ended; may be called while the job runs, and again.

    Args:
        host: Where it ran.
        job: Which.
        target: This project's store.
        folder: Of the job on this machine; keeps a mirror, so that a later call brings the rest.
        progress: Told what is under way.

    Raises:
        CheckError: A checkpoint is not what its run says.
        ConfigError: The two stores are of different versions of MLflow.
    """
    progress("files", 0, 1)
    ask_job(host, job, "snapshot")
    mirror = load_settings(folder / "mirror")
    host.pull(f"{job.dir}/mlruns", mirror.mlruns_dir, *_MIRRORED)
    host.pull(f"{job.dir}/{SNAPSHOT_DIR}", mirror.mlruns_dir)
    progress("files", 1, 1)
    is_ours = (mirror.mlruns_dir / DATABASE).is_file()
    merged = _merge(mirror, target, progress) if is_ours else None
    names = [n for kind in _FOLDERS for n in _bring(kind, job, mirror, target.settings)]
    return Fetched(merged=merged, folders=tuple(names))


def _merge(mirror: Settings, target: Place, progress: ProgressFn) -> Merged:
    here = mirror.mlruns_dir
    there = recorded_root(here)
    if there is not None and there != here:
        relocate_store(there, here).backup.unlink()
    # Files first: a run that is seen has its checkpoints.
    for path in mirror.checkpoints_dir.glob("[!.]*"):
        if path.is_dir():
            _link_tree(path, target.settings.checkpoints_dir / path.name)
    merged = merge_store(find_place(str(here), mirror, None), target, progress)
    store = open_store(target.settings)
    for model_id in merged.model_ids:
        checkpoint = store.get_checkpoint(model_id)
        if checkpoint.path.is_dir() and drafter_digest(checkpoint.path).root != checkpoint.digest:
            raise CheckError(
                f"{checkpoint.name}: expected digest {checkpoint.digest} of what lies in "
                f"{checkpoint.path}, found another",
                "fetch it once more; if that does not help, look at the disk of the host",
            )
    return merged


def _bring(kind: str, job: RemoteJob, mirror: Settings, settings: Settings) -> list[str]:
    """Folders of a kind that are not here, or that an earlier call brought from this job."""
    brought = []
    for path in sorted((mirror.mlruns_dir / kind).glob("[!.]*")):
        target = settings.mlruns_dir / kind / path.name
        mark = target / _MARK
        if target.exists() and not (mark.is_file() and mark.read_text() == job.id):
            continue
        _link_tree(path, target)
        mark.write_text(job.id)
        brought.append(f"{kind}/{path.name}")
    return brought


def _link_tree(source: Path, target: Path) -> None:
    """Makes a folder equal to another, its files shared on disk: rsync replaces, never rewrites.

    They are copied where that cannot be: checkpoints may lie on a disk of their own.
    """
    scratch = target.with_name(f".{target.name}.coming")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, scratch, symlinks=True, copy_function=_link_or_copy)
    if target.exists():
        shutil.rmtree(target)
    scratch.rename(target)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
