"""`harness registry`: the champions, their versions and what was decided."""

from typing import Annotated

import typer

from harness import render
from harness.errors import ConfigError
from harness.settings import load_settings
from harness.tracking import names
from harness.tracking.decisions import DecisionLog
from harness.tracking.records import ModelVersion
from harness.tracking.store import open_store

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Champions: list, show."
)
_COLUMNS = ("acceptance", "speedup")
_FIGURES = (names.METRIC_ACCEPTANCE_LENGTH, names.METRIC_DECODE_SPEEDUP)


@app.command("list")
def list_models() -> None:
    """One line a model: its champion and what it measured."""
    registry = open_store(load_settings()).registry
    rows = []
    for name in registry.names():
        aliases, versions = registry.aliases(name), registry.versions(name)
        champion = aliases.get(names.ALIAS_CHAMPION)
        tags = next((v.tags for v in versions if v.version == champion), {})
        rows.append((name, len(versions), champion, *(_number(tags, key) for key in _FIGURES)))
    render.show_table("registered models", ("model", "versions", "champion", *_COLUMNS), rows)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A registered model.")]) -> None:
    """The versions of a model, newest first, and the decisions about it."""
    settings = load_settings()
    versions = open_store(settings).registry.versions(name)
    if not versions:
        message = f"expected a registered model, found none named {name!r}"
        raise ConfigError(message, "harness registry list")
    render.show_table(
        name,
        ("version", "aliases", *_COLUMNS, "run"),
        [_row(version) for version in reversed(versions)],
    )
    decisions = [d for d in DecisionLog(settings.mlruns_dir).read() if d.model == name]
    render.show_table(
        "decisions",
        ("when", "who", "action", "from", "to", "bench run"),
        [
            (d.made_at, d.who, d.action, d.from_version, d.to_version, d.bench_run_id)
            for d in decisions
            if d.action != "promoting"
        ],
    )


def _row(version: ModelVersion) -> tuple[object, ...]:
    figures = (_number(version.tags, key) for key in _FIGURES)
    return (version.version, ", ".join(version.aliases), *figures, version.run_id)


def _number(tags: dict[str, str], key: str) -> float | None:
    return float(tags[key]) if key in tags else None
