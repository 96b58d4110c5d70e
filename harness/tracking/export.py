"""Writes a drafter out as a folder that vLLM serves: checked, copied, hashed again, renamed."""

import json
import shutil
import tempfile
from pathlib import Path

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.config.policy import Policy
from harness.digests import FolderDigest, digest_files, write_atomic
from harness.drafter.checks import require_sound
from harness.drafter.drafter import Drafter, drafter_digest
from harness.drafter.provenance import package_versions
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError, PrerequisiteError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.decisions import now_text
from harness.tracking.evidence import Evidence, find_evidence
from harness.tracking.model_card import CardFacts, render_card
from harness.tracking.records import RunSummary
from harness.tracking.resolve import ResolvedDrafter, require_unchanged, resolve_drafter
from harness.tracking.serving import ServeCommands, serve_commands
from harness.tracking.store import Store

MANIFEST = "manifest.json"
_DEFAULT_K = 3


class Export(Frozen):
    """What was written and how to serve it."""

    reference: str
    path: Path
    digest: FolderDigest
    verifier: str | None
    serve: ServeCommands


def export_drafter(
    reference: str,
    out_dir: Path,
    settings: Settings,
    store: Store | None,
    *,
    verifier: str | None = None,
    is_overwrite: bool = False,
    progress: ProgressFn | None = None,
) -> Export:
    """Copies a drafter's config and weights to a new folder, with manifest and model card.

    Args:
        reference: Any reference to a drafter.
        out_dir: The folder to make; it is there whole, or not at all.
        settings: Where the project is.
        store: The open store; None where the reference is a path or hub id.
        verifier: Reference of the verifier; None takes the one of the training run.
        is_overwrite: Replaces a folder that an earlier export wrote.
        progress: Told the bytes hashed and copied.

    Raises:
        ConfigError: The folder is there already, or there is no such drafter.
        CheckError: The drafter is unsound, or its files are not what was recorded.
        PrerequisiteError: Not enough room on the disk.
    """
    out_dir = out_dir.absolute()
    _require_replaceable(out_dir, is_overwrite=is_overwrite)
    drafter = resolve_drafter(reference, settings, store)
    run = store.get_run(drafter.run_id) if store and drafter.run_id else None
    wanted = verifier or (run.tags.get(names.TAG_VERIFIER) if run else None)
    known = Verifier.load(wanted, settings) if wanted else None
    require_sound(drafter.path, known, deep=True)
    digest = _checked_digest(drafter, store, progress)
    evidence = _evidence(drafter, store)
    k = evidence.row.k if evidence else _DEFAULT_K
    card = _card(drafter, digest, run, evidence, k)
    _write(drafter, digest, out_dir, _manifest(drafter, digest, wanted), card)
    place = str(known.path) if known else "VERIFIER_DIR"
    serve = serve_commands(place, str(out_dir), k)
    return Export(reference=reference, path=out_dir, digest=digest, verifier=wanted, serve=serve)


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
    done = 0
    total = drafter.checkpoint.num_bytes if drafter.checkpoint else 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress("hashing the weights", done, total)

    if store and drafter.model_id:
        require_unchanged(drafter, store, on_bytes)
        return store.checkpoint_manifest(drafter.model_id)
    return drafter_digest(drafter.path, on_bytes)


def _evidence(drafter: ResolvedDrafter, store: Store | None) -> Evidence | None:
    if store is None or drafter.checkpoint is None:
        return None
    try:
        return find_evidence([drafter], Policy(), store)[drafter.reference]
    except ConfigError:  # it was never measured, and the card says so
        return None


def _card(
    drafter: ResolvedDrafter,
    digest: FolderDigest,
    run: RunSummary | None,
    evidence: Evidence | None,
    k: int,
) -> str:
    facts = CardFacts(
        title=run.name if run else drafter.path.name,
        reference=drafter.reference,
        drafter=Drafter.load(drafter.path),
        digest=digest,
        run=run,
        serve=serve_commands("VERIFIER_DIR", "DRAFTER_DIR", k),
    )
    return render_card(facts, evidence)


def _manifest(drafter: ResolvedDrafter, digest: FolderDigest, verifier: str | None) -> str:
    document = {
        "schema_version": 1,
        "stage": "export",
        "exported_at": now_text(),
        "reference": drafter.reference,
        "run_id": drafter.run_id,
        "model_id": drafter.model_id,
        "verifier": verifier,
        "versions": package_versions(),
        "files": digest.model_dump(mode="json"),
        "digest": digest.root,
    }
    return json.dumps(document, indent=2) + "\n"


def _write(
    drafter: ResolvedDrafter, digest: FolderDigest, out_dir: Path, manifest: str, card: str
) -> None:
    """Fills a folder beside the wanted one, checks the copy, and renames it into place."""
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out_dir.parent).free
    if free < digest.num_bytes:
        raise PrerequisiteError(
            f"expected {digest.num_bytes / 1e6:.0f} MB free for {out_dir}, "
            f"found {free / 1e6:.0f} MB",
            "free space, or give a folder on another disk with --out",
        )
    with tempfile.TemporaryDirectory(dir=out_dir.parent, prefix=f".{out_dir.name}.") as scratch:
        folder = Path(scratch) / "new"
        folder.mkdir()
        for file in digest.files:
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(drafter.path / file.name, target)
        found = digest_files(folder, [file.name for file in digest.files])
        if found.root != digest.root:
            raise CheckError(
                f"the copy in {folder} differs from {drafter.path}: expected root digest "
                f"{digest.root}, found {found.root}",
                "the files changed while they were copied, or the disk is failing; export again",
            )
        write_atomic(folder / MANIFEST, manifest)
        write_atomic(folder / "README.md", card)
        for name in (MANIFEST, "README.md"):
            (folder / name).chmod(0o644)  # to be read by whoever serves it
        if out_dir.exists():
            out_dir.rename(Path(scratch) / "old")
        folder.rename(out_dir)
