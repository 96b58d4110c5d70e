"""`harness registry`: champions, versions, what was decided, and whether all that holds."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.errors import ConfigError
from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.audit import check_registry, delete_version
from harness.tracking.deciding import approve
from harness.tracking.decisions import Decision, DecisionLog
from harness.tracking.records import ModelVersion
from harness.tracking.registry import recover, require_model_name
from harness.tracking.rollback import settle
from harness.tracking.store import Store, open_store

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Champions: list, show, history, check, approve, settle, delete.",
)
_COLUMNS = ("acceptance", "speedup")
_FIGURES = (names.METRIC_ACCEPTANCE_LENGTH, names.METRIC_DECODE_SPEEDUP)
_FAILED = 4
_Model = Annotated[str, typer.Argument(help="A registered model.")]


class By(StrEnum):
    """Which of the two is believed."""

    LOG = "log"
    ALIAS = "alias"


@app.command("list")
def list_models(*, as_json: AsJson = False) -> None:
    """One line a model: its champion and what it measured."""
    registry = open_store(load_settings()).registry
    rows = []
    for name in registry.names():
        versions = registry.versions(name)
        by_alias = {alias: v for v in versions for alias in v.aliases}
        champion, previous = (
            by_alias.get(alias) for alias in (names.ALIAS_CHAMPION, names.ALIAS_PREVIOUS)
        )
        numbers = [v.version if v else None for v in (champion, previous)]
        figures = [_number(champion.tags if champion else {}, key) for key in _FIGURES]
        rows.append((name, len(versions), *numbers, *figures))
    columns = ("model", "versions", "champion", "previous", *_COLUMNS)
    if as_json:
        documents = [dict(zip(columns, row, strict=True)) for row in rows]
        render.show_json(json.dumps({"schema_version": 1, "models": documents}, indent=2))
    else:
        render.show_table("registered models", columns, rows)


@app.command()
def show(model: _Model) -> None:
    """The versions of a model, newest first, and where each stands."""
    settings = load_settings()
    versions = _versions(model, open_store(settings))
    render.show_table(
        model,
        ("version", "aliases", "state", *_COLUMNS, "weights", "run"),
        [_row(version) for version in reversed(versions)],
    )
    _show_decisions(model, settings, limit=5)


@app.command()
def history(model: _Model, *, as_json: AsJson = False) -> None:
    """Every decision about a model, oldest first: who, when, from, to, on what evidence."""
    settings = load_settings()
    decisions = _decisions(model, settings)
    if not decisions:
        _versions(model, open_store(settings))
    if as_json:
        documents = [decision.model_dump(mode="json") for decision in decisions]
        render.show_json(json.dumps({"schema_version": 1, "decisions": documents}, indent=2))
    else:
        _show_decisions(model, settings)


@app.command()
def check(
    model: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Ends what a killed command began; then log, aliases and hashed weights must agree."""
    settings = load_settings()
    store = open_store(settings)
    if model is not None:
        _versions(model, store)
    with render.progress() as progress:
        mended = recover(store, settings)
        checks = check_registry(settings, store, model, progress=progress)
    if mended:
        render.log(f"ended what was begun: {mended.action} {mended.model}")
    if as_json:
        documents = [found.model_dump(mode="json") for found in checks]
        render.show_json(json.dumps({"schema_version": 1, "checks": documents}, indent=2))
    else:
        rows = [(found.state, found.name, found.found, found.fix) for found in checks]
        render.show_table("registry", ("state", "what", "found", "to mend it"), rows)
    if any(found.state == "failed" for found in checks):
        raise typer.Exit(_FAILED)


@app.command("approve")
def approve_weights(
    model: _Model,
    digest: Annotated[str, typer.Argument(help="Of the proposed weights; 12 digits or more.")],
) -> None:
    """Lets the proposed weights become champion; the promotion is then run again."""
    settings = load_settings()
    done = approve(require_model_name(model), digest, settings, open_store(settings))
    _show_decision(done)


@app.command("settle")
def settle_alias(
    model: _Model,
    *,
    by: Annotated[By, typer.Option(help="log: move it back. alias: accept where it is.")],
) -> None:
    """Makes alias and log agree, after the alias was moved without harness."""
    settings = load_settings()
    done = settle(model, settings, open_store(settings), is_by_alias=by is By.ALIAS)
    _show_decision(done)


@app.command()
def delete(model: _Model, version: Annotated[int, typer.Argument(help="Its number.")]) -> None:
    """Forgets a version that has no alias and was never champion; its files stay."""
    settings = load_settings()
    gone = delete_version(model, version, settings, open_store(settings))
    render.show_text(f"deleted version {gone.version} of {gone.name}, checkpoint {gone.model_id}")


def _versions(model: str, store: Store) -> tuple[ModelVersion, ...]:
    versions = store.registry.versions(require_model_name(model))
    if not versions:
        message = f"expected a registered model, found none named {model!r}"
        raise ConfigError(message, "harness registry list")
    return versions


def _decisions(model: str, settings: Settings) -> list[Decision]:
    log = DecisionLog(settings.mlruns_dir).read()
    return [d for d in log if d.model == require_model_name(model) and not d.is_begun]


def _show_decisions(model: str, settings: Settings, limit: int = 0) -> None:
    decisions = _decisions(model, settings)[-limit:]
    render.show_table(
        f"the last {limit} decisions" if limit else "decisions",
        ("when", "who", "action", "from", "to", "weights", "bench run", "why"),
        [
            (d.made_at, d.who, d.action, d.from_version, d.to_version, d.weights_digest[:12],
             d.bench_run_id, _why(d))
            for d in decisions
        ],
    )  # fmt: skip


def _why(decision: Decision) -> str | None:
    failed = [f"{g.name} {g.found}" for g in decision.gates if g.is_passed is False]
    approved = [f"approved by {decision.approved_by}"] if decision.approved_by else []
    return "; ".join([*failed, *approved, *filter(None, [decision.reason])]) or None


def _show_decision(decision: Decision) -> None:
    facts = {
        "champion": decision.to_version if decision.action == "settled" else decision.from_version,
        "weights": f"sha256 {decision.weights_digest}" if decision.weights_digest else None,
        "who": decision.who,
        "line of the log": decision.sequence,
    }
    render.show_facts(f"{decision.action} {decision.model}", facts)


def _row(version: ModelVersion) -> tuple[object, ...]:
    tags = version.tags
    figures = (_number(tags, key) for key in _FIGURES)
    state, digest = tags.get(names.TAG_STATE), tags.get("weights.digest", "")[:12] or None
    aliases = ", ".join(version.aliases)
    return (version.version, aliases, state, *figures, digest, version.run_id)


def _number(tags: dict[str, str], key: str) -> float | None:
    return float(tags[key]) if key in tags else None
