"""`harness store`: where the MLflow store is, and what to do when its folder was moved."""

from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.settings import load_settings
from harness.tracking.relocate import relocate_store

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="The MLflow store: where it is, move it.",
)


@app.command()
def path() -> None:
    """Prints the store's folder, or its address where MLFLOW_TRACKING_URI names another."""
    settings = load_settings()
    render.show_text(str(settings.mlruns_dir) if settings.is_embedded else settings.tracking_uri)


@app.command()
def relocate(
    old: Annotated[Path, typer.Argument(help="The mlruns folder that the store was made in.")],
    new: Annotated[Path, typer.Argument(help="The mlruns folder where it is now.")],
) -> None:
    """Rewrites the absolute paths inside a moved store, in one transaction after a backup."""
    done = relocate_store(old, new)
    render.show_facts(
        "store relocated",
        {"from": done.old, "to": done.new, "paths": done.num_paths, "backup": done.backup},
    )
