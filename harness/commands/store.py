"""`harness store`: where the MLflow store is, when its folder was moved, moving all of it."""

from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.redaction import redacted
from harness.settings import load_settings
from harness.tracking.migrate import find_place, migrate_store
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
    render.show_text(
        str(settings.mlruns_dir) if settings.is_embedded else redacted(settings.tracking_uri)
    )


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


@app.command()
def migrate(
    source: Annotated[str, typer.Argument(help="A project folder, its mlruns, or an address.")],
    target: Annotated[str, typer.Argument(help="The same; must be new or begun by this command.")],
    *,
    database: Annotated[
        str | None,
        typer.Option(
            envvar="HARNESS_STORE_DATABASE",
            help="Where one of the two is an MLflow server: the database behind it.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Moves everything into another store, ids kept; counts and digests of both are compared.

    Killed on the way, the same call goes on.
    """
    settings = load_settings()
    places = [find_place(reference, settings, database) for reference in (source, target)]
    with render.progress() as progress:
        done = migrate_store(places[0], places[1], progress)
    if as_json:
        render.show_json(done.model_dump_json(indent=2))
        return
    facts = {
        "from": done.source,
        "to": done.target,
        "runs": done.rows.get("runs", 0),
        "points of metrics": done.rows.get("metrics", 0),
        "checkpoints": done.rows.get("logged_models", 0),
        "model versions": done.rows.get("model_versions", 0),
        "decisions": done.num_decisions,
        "artifacts": f"{done.num_files} files, {done.num_bytes:,} bytes",
        "tables there before": done.num_tables_before,
        "artifacts left elsewhere": done.num_elsewhere,
    }
    render.show_facts("store moved; every table and file is equal by digest", facts)
