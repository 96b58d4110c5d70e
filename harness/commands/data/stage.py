"""What the commands of `harness data` share: a stage's options, and its manifest on the screen."""

from pathlib import Path
from typing import Annotated

import typer

from harness.corpus.manifest import Manifest
from harness.render import show_facts, show_json

Out = Annotated[Path, typer.Option(help="The stage's folder; unfinished work in it is taken up.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code of the verifier's folder, as some tokenizers need."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")]


def show_stage(out: Path, manifest: Manifest, as_json: bool, **more: object) -> None:
    """Counts of a finished stage on stdout; with `as_json` the manifest, `more` left out."""
    if as_json:
        show_json(manifest)
        return
    facts = {**manifest.counts, "megabytes": manifest.files.num_bytes / 1e6, **more}
    show_facts(f"{out}  {manifest.stage} {manifest.digest[:12]}", facts)
