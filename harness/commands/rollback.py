"""`harness rollback`: make an earlier champion champion again."""

from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.settings import load_settings
from harness.tracking.rollback import roll_back
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    model: Annotated[str, typer.Argument(help="A registered model.")],
    *,
    to: Annotated[
        int | None, typer.Option(help="An earlier champion's version; the one before if not given.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the decision log.")] = None,
    as_json: AsJson = False,
) -> None:
    """Moves the alias champion back, after hashing the weights that it goes back to.

    Example: harness rollback smollm2-135m --reason "answers cut short in production"
    """
    settings = load_settings()
    with render.progress() as progress:
        done = roll_back(
            model, settings, open_store(settings), to=to, reason=reason, progress=progress
        )
    if as_json:
        render.show_json(done)
        return
    facts = {
        "champion before": done.from_version,
        "champion now": done.to_version,
        "previous": done.previous_version,
        "weights": f"sha256 {done.weights_digest}",
    }
    render.show_facts(f"{done.action} {done.model}", facts)
