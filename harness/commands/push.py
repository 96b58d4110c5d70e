"""`harness push`: an export, uploaded to a hub repository."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.commands.loading import load_in_vllm
from harness.commands.options import NoLoad, Reference, VerifierOfRun
from harness.drafter.convert import Target
from harness.drafter.hub import push_folder, require_hub
from harness.settings import load_settings
from harness.tracking.export import export_drafter
from harness.tracking.store import store_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    reference: Reference,
    target: Annotated[str, typer.Argument(metavar="hf:<org>/<name>", help="The repository.")],
    *,
    to: Annotated[Target, typer.Option("--format", help="The format to write.")] = "speculators",
    verifier: VerifierOfRun = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository private, if it is made.")
    ] = False,
    no_load: NoLoad = False,
) -> None:
    """Exports a drafter with its model card, and uploads that folder as one commit.

    Who you are is what `hf auth login` or HF_TOKEN says; HF_ENDPOINT names another hub.

    Example: harness push models:/smollm2-135m@champion hf:my-org/smollm2-135m-eagle3
    """
    settings = load_settings()
    user = require_hub(target)
    store = store_of(reference, settings)
    with tempfile.TemporaryDirectory() as scratch, render.progress() as progress:
        done = export_drafter(
            reference,
            Path(scratch) / "drafter",
            settings,
            store,
            verifier=verifier,
            to=to,
            load=None if no_load else load_in_vllm(settings, progress),
            progress=progress,
        )
        message = f"{done.reference}, sha256 {done.source_digest}"
        place = push_folder(done.path, target, message=message, is_private=private)
    facts = {"repository": place, "as": user, "weights": f"sha256 {done.digest.root}"}
    render.show_facts(f"pushed {reference}", facts)
