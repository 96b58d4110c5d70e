"""`harness lineage`: where a drafter came from, back to the root."""

import typer

from harness.commands.options import AsJson
from harness.drafter.drafter import drafter_digest
from harness.drafter.lineage import RunRecord, render_mermaid, render_tree, trace_lineage
from harness.errors import ConfigError
from harness.render import show_json, show_text
from harness.settings import load_settings
from harness.tracking import names
from harness.tracking.resolve import FORMS, resolve_drafter, run_of_path
from harness.tracking.store import Store, open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def lineage(
    drafter: str = typer.Argument(help=f"A drafter: {FORMS}."),
    mermaid: bool = typer.Option(False, "--mermaid", help="A Mermaid flowchart."),
    as_json: AsJson = False,
) -> None:
    """Follow a drafter's parents to the root: runs, digests, verifiers, corpora, code.

    Example: harness lineage models:/smollm2-eagle3@champion --mermaid

    Next: harness inspect REF PARENT
    """
    settings = load_settings()
    store = open_store(settings)
    found = resolve_drafter(drafter, settings, store)
    run_id = found.run_id or run_of_path(found.path, settings)
    digest = found.digest or drafter_digest(found.path).root
    chain = trace_lineage(drafter, digest, run_id, lambda known: _read_run(store, known))
    if as_json:
        show_json(chain)
        return
    show_text(render_mermaid(chain) if mermaid else render_tree(chain))


def _read_run(store: Store, run_id: str) -> RunRecord | None:
    try:
        run = store.get_run(run_id)
    except ConfigError:
        return None
    return RunRecord(run.name, store.read_text(run_id, names.ARTIFACT_PROVENANCE))
