"""Writes a drafter out as a folder that vLLM serves: checked, copied, hashed again, renamed.

What was written is loaded before it is renamed into place, if the caller brings a way to load it.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.digests import FolderDigest, digest_files, join_digests, write_atomic
from harness.drafter.checks import require_sound
from harness.drafter.convert import Target, convert_drafter
from harness.drafter.drafter import Drafter, drafter_digest
from harness.drafter.lineage import Lineage, RunRecord, trace_lineage
from harness.drafter.provenance import package_versions
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError, PrerequisiteError
from harness.settings import Settings
from harness.tracking import names, spelling
from harness.tracking.decisions import now_text
from harness.tracking.evidence import Evidence, find_joint_bench, read_evidence
from harness.tracking.model_card import CardFacts, render_card
from harness.tracking.records import RunSummary
from harness.tracking.resolve import (
    ResolvedDrafter,
    count_hashed,
    require_unchanged,
    resolve_drafter,
)
from harness.tracking.serving import ServeCommands, serve_commands
from harness.tracking.store import Store

MANIFEST = "manifest.json"
_DEFAULT_K = 3


class Loaded(Frozen):
    """What a server said that had loaded the written folder."""

    vllm_version: str
    start_s: float
    num_drafts: int
    num_accepted: int


LoadFn = Callable[[Path, Verifier, int], Loaded]
"""Serves a drafter's folder with its verifier and K, and asks for an answer."""


class Export(Frozen):
    """What was written and how to serve it."""

    reference: str
    path: Path
    digest: FolderDigest
    source_digest: str
    """Root digest of the drafter; another one than `digest` where the format was changed."""
    format: str
    verifier: str | None
    serve: ServeCommands
    loaded: Loaded | None
    """None: it was not loaded."""


class _Source(NamedTuple):
    """The drafter that is written, and all that is known of it."""

    drafter: ResolvedDrafter
    digest: FolderDigest
    run: RunSummary | None
    evidence: Evidence | None
    lineage: Lineage | None
    verifier: str | None

    @property
    def k(self) -> int:
        """Tokens to propose: where it decoded fastest, else what is usual."""
        return self.evidence.row.k if self.evidence else _DEFAULT_K


def export_drafter(
    reference: str,
    out_dir: Path,
    settings: Settings,
    store: Store | None,
    *,
    verifier: str | None = None,
    to: Target | None = None,
    load: LoadFn | None = None,
    is_overwrite: bool = False,
    progress: ProgressFn | None = None,
) -> Export:
    """Writes a drafter's config and weights to a new folder, with manifest and model card.

    Args:
        reference: Any reference to a drafter.
        out_dir: The folder to make; it is there whole, or not at all.
        settings: Where the project is.
        store: The open store; None where the reference is a path or hub id.
        verifier: Reference of the verifier; None takes the one of the training run.
        to: The format to write; None keeps the one it has.
        load: Loads what was written; None writes it unloaded.
        is_overwrite: Replaces a folder that an earlier export wrote.
        progress: Told the bytes hashed.

    Raises:
        ConfigError: The folder is there already, or there is no such drafter or verifier.
        CheckError: The drafter is unsound, its files are not what was recorded, or vLLM refuses it.
        PrerequisiteError: Not enough room on the disk.
    """
    out_dir = out_dir.absolute()
    _require_replaceable(out_dir, is_overwrite=is_overwrite)
    drafter = resolve_drafter(reference, settings, store)
    run = store.get_run(drafter.run_id) if store and drafter.run_id else None
    wanted = verifier or (run.tags.get(names.TAG_VERIFIER) if run else None)
    known = Verifier.load(wanted, settings) if wanted else None
    if load and known is None:
        raise _no_verifier(reference)
    digest = _checked_digest(drafter, store, progress)
    require_sound(drafter.path, known, deep=True)
    evidence, lineage = _evidence(drafter, store), _lineage(drafter, store)
    source = _Source(drafter, digest, run, evidence, lineage, wanted)
    _require_room(out_dir, digest)
    with tempfile.TemporaryDirectory(dir=out_dir.parent, prefix=f".{out_dir.name}.") as scratch:
        folder = Path(scratch) / "new"
        written = _write(source, to, folder)
        loaded = load(folder, known, source.k) if load and known else None
        if out_dir.exists():
            out_dir.rename(Path(scratch) / "old")
        folder.rename(out_dir)
    return Export(
        reference=reference,
        path=out_dir,
        digest=written,
        source_digest=digest.root,
        format=Drafter.load(out_dir).format,
        verifier=wanted,
        serve=serve_commands(str(known.path) if known else "VERIFIER_DIR", str(out_dir), source.k),
        loaded=loaded,
    )


def _no_verifier(reference: str) -> ConfigError:
    return ConfigError(
        f"expected a verifier to load {reference} with, found none given and none recorded",
        "say --verifier, or --no-load to write it unloaded",
    )


def _require_replaceable(out_dir: Path, *, is_overwrite: bool) -> None:
    """An existing folder must be empty, or an earlier export that may be replaced."""
    if not out_dir.exists() or (out_dir.is_dir() and not any(out_dir.iterdir())):
        return
    is_export = (out_dir / MANIFEST).is_file() and (out_dir / "config.json").is_file()
    if not is_export:
        raise ConfigError(
            f"expected a new or empty folder, found files in {out_dir} that no export wrote",
            "give another --out; only an earlier export is ever replaced",
        )
    if not is_overwrite:
        raise ConfigError(f"{out_dir} holds an earlier export", "replace it with --overwrite")


def _checked_digest(
    drafter: ResolvedDrafter, store: Store | None, progress: ProgressFn | None
) -> FolderDigest:
    """The digest of files that were hashed just now and are what was recorded.

    The names in a manifest are an artifact's words; they are taken only when they hash to the
    digest that cannot be changed in the store, and copied only by the names that the folder has.
    """
    on_bytes = count_hashed(progress, drafter.checkpoint.num_bytes if drafter.checkpoint else 0)
    if store is None or drafter.model_id is None:
        return drafter_digest(drafter.path, on_bytes)
    found = require_unchanged(drafter, store, on_bytes)
    manifest = store.checkpoint_manifest(drafter.model_id)
    for file in manifest.files:
        spelling.require_artifact_path(file.name)
    if join_digests(manifest.files).root != found:
        raise CheckError(
            f"the manifest of {drafter.reference} was changed after it was recorded: expected root "
            f"digest {found}, found {join_digests(manifest.files).root}",
            f"restore {names.ARTIFACT_MANIFEST} among the artifacts of {drafter.model_id}",
        )
    return manifest


def _evidence(drafter: ResolvedDrafter, store: Store | None) -> Evidence | None:
    """The newest bench of these weights; None where they were never measured."""
    if store is None or drafter.checkpoint is None:
        return None
    search = find_joint_bench([drafter.checkpoint], store)
    return read_evidence(search, drafter.checkpoint.digest, "decode_speedup")


def _lineage(drafter: ResolvedDrafter, store: Store | None) -> Lineage | None:
    if store is None or drafter.run_id is None:
        return None

    def read_run(run_id: str) -> RunRecord | None:
        try:
            return RunRecord(
                store.get_run(run_id).name, store.read_text(run_id, names.ARTIFACT_PROVENANCE)
            )
        except ConfigError:
            return None

    return trace_lineage(drafter.reference, drafter.digest, drafter.run_id, read_run)


def _require_room(out_dir: Path, digest: FolderDigest) -> None:
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out_dir.parent).free
    if free < digest.num_bytes:
        raise PrerequisiteError(
            f"expected {digest.num_bytes / 1e6:.0f} MB free for {out_dir}, "
            f"found {free / 1e6:.0f} MB",
            "free space, or give a folder on another disk with --out",
        )


def _write(source: _Source, to: Target | None, folder: Path) -> FolderDigest:
    """Fills a folder with weights, config, manifest and card; returns the digest of the first two.

    A copy is hashed again; a conversion proves itself, tensor by tensor and fact by fact.
    """
    drafter, digest = source.drafter, source.digest
    if to is None or Drafter.load(drafter.path).format == to:
        folder.mkdir()
        for file in digest.files:
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(drafter.path / file.name, target)
        written = digest_files(folder, [file.name for file in digest.files])
        if written.root != digest.root:
            raise CheckError(
                f"the copy in {folder} differs from {drafter.path}: expected root digest "
                f"{digest.root}, found {written.root}",
                "the files changed while they were copied, or the disk is failing; export again",
            )
    else:
        convert_drafter(drafter.path, to, folder, verifier_name=source.verifier)
        written = drafter_digest(folder)
    for name, text in (
        (MANIFEST, _manifest(source, written)),
        ("README.md", _card(source, folder, written)),
    ):
        write_atomic(folder / name, text)
        (folder / name).chmod(0o644)  # to be read by whoever serves it
    return written


def _card(source: _Source, folder: Path, written: FolderDigest) -> str:
    drafter, run = source.drafter, source.run
    facts = CardFacts(
        title=run.name if run else drafter.path.name,
        reference=drafter.reference,
        drafter=Drafter.load(folder),
        digest=written,
        source_digest=source.digest.root,
        run=run,
        lineage=source.lineage,
        serve=serve_commands("VERIFIER_DIR", "DRAFTER_DIR", source.k),
    )
    return render_card(facts, source.evidence)


def _manifest(source: _Source, written: FolderDigest) -> str:
    drafter = source.drafter
    document = {
        "schema_version": 1,
        "stage": "export",
        "exported_at": now_text(),
        "reference": drafter.reference,
        "run_id": drafter.run_id,
        "model_id": drafter.model_id,
        "bench_run_id": source.evidence.bench.run_id if source.evidence else None,
        "verifier": source.verifier,
        "versions": package_versions(),
        "files": written.model_dump(mode="json"),
        "digest": written.root,
        "source_digest": source.digest.root,
    }
    return json.dumps(document, indent=2) + "\n"
