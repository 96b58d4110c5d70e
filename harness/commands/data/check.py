"""`harness data check`: what is wrong with a stage's files, and the mending of hidden states."""

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import AsJson, OptionalVerifier
from harness.corpus.check import StateFinding, check_corpus, repair_corpus
from harness.corpus.manifest import Manifest, check_files, load_any_manifest
from harness.drafter.verifier import Verifier
from harness.errors import CheckError
from harness.render import log, progress, show_json, show_table, warn
from harness.settings import load_settings, share_cores

_MOST_SHOWN = 20


def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished stage.")],
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte, not headers and token ids alone.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Extract again what is not right, and nothing else.")
    ] = False,
    verifier: OptionalVerifier = None,
    as_json: AsJson = False,
) -> None:
    """Finds truncated, stale and mismatched files; exit 4 if any is left.

    Example: harness data check mlruns/demo/hidden_states --repair
    """
    share_cores()
    settings = load_settings()
    stage = load_any_manifest(folder)
    if stage.stage != "extract":
        check_files(folder, stage, deep=True)
        _show(folder, stage, [], as_json=as_json)
        return
    with progress() as report:
        manifest, findings = check_corpus(folder, deep=deep, progress=report)
        if repair and findings:
            reference = verifier or manifest.origins["verifier"]
            loaded = Verifier.load(reference, settings)
            done = repair_corpus(
                folder, loaded, findings, cache_dir=settings.cache_dir, progress=report
            )
            log(f"made again: {done.num_files} files")
            if not done.is_same:
                warn(f"other bytes than before: the corpus is now {done.digest[:12]}")
            manifest, findings = check_corpus(folder, deep=deep, progress=report)
    _show(folder, manifest, findings, as_json=as_json)
    if findings:
        raise typer.Exit(CheckError.exit_code)


def _show(folder: Path, manifest: Manifest, findings: list[StateFinding], *, as_json: bool) -> None:
    if as_json:
        document = {
            "schema_version": 1,
            "stage": manifest.stage,
            "digest": manifest.digest,
            "findings": [finding.model_dump(mode="json") for finding in findings],
        }
        show_json(json.dumps(document, indent=2))
        return
    num_files = len(manifest.files.files)
    if not findings:
        log(f"{folder}: {manifest.stage} {manifest.digest[:12]}, all {num_files} files are right")
        return
    shown = findings[:_MOST_SHOWN]
    more = f", the first {len(shown)}" if len(findings) > len(shown) else ""
    show_table(
        f"{len(findings)} of {num_files} files are not what they should be{more}",
        ("file", "is", "expected", "found"),
        [(one.name, one.kind, one.expected, one.found) for one in shown],
    )
    log("make them again, and no others, with: harness data check DIR --repair")
