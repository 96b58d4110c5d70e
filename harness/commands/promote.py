"""`harness promote`: make a drafter the champion, if the policy lets it."""

from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.config.load import load_config
from harness.config.policy import Policy
from harness.settings import load_settings
from harness.tracking.promotion import Promotion, promote
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_REFUSED = 4


@app.command()
def main(
    references: Annotated[
        list[str],
        typer.Argument(metavar="REF...", help="run:<id>[@<epoch>] or models:/...; best is taken."),
    ],
    *,
    name: Annotated[str, typer.Option(help="Registered model, such as smollm2-135m.")],
    policy: Annotated[Path, typer.Option(help="The gates, as YAML.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a gate.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask only, change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Makes the best of the given drafters champion, if it passes every gate of the policy."""
    settings, gates = load_settings(), load_config(Policy, policy, overrides or ())
    with render.progress() as progress:
        promotion = promote(
            references,
            name,
            gates,
            settings,
            open_store(settings),
            is_dry_run=dry_run,
            progress=progress,
        )
    render.show_json(promotion) if as_json else _show(promotion)
    if not promotion.is_passed:
        raise typer.Exit(_REFUSED)


def _show(promotion: Promotion) -> None:
    if len(promotion.candidates) > 1:
        ranked = sorted(promotion.candidates.items(), key=lambda item: -(item[1] or 0.0))
        render.show_table("candidates, best first", ("reference", "figure"), ranked)
    render.show_table(
        f"{promotion.reference} for {promotion.model}",
        ("gate", "required", "found", "passed"),
        [(g.name, g.required, g.found, g.is_passed) for g in promotion.gates],
    )
    render.show_facts(
        promotion.action,
        {
            "champion before": promotion.from_version,
            "champion now": promotion.to_version or promotion.from_version,
            "evidence": f"bench run {promotion.bench_run_id}",
            "weights": f"sha256 {promotion.weights_digest}",
        },
    )
