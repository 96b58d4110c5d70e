"""`harness promote`: make a drafter the champion, if the policy lets it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from eval.progress import ProgressFn
from harness import render
from harness.commands.options import AsJson
from harness.config.bench import BenchConfig
from harness.config.load import load_config
from harness.config.policy import Policy
from harness.errors import ConfigError
from harness.settings import Settings, load_settings
from harness.tracking.deciding import Promotion
from harness.tracking.decisions import Gate
from harness.tracking.promotion import MeasureFn, promote
from harness.tracking.store import Store, open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_REFUSED = 4
_HANGING = 4


@app.command()
def main(
    references: Annotated[
        list[str],
        typer.Argument(metavar="REF...", help="run:<id>[@<epoch>] or models:/...; best is taken."),
    ],
    *,
    policy: Annotated[Path, typer.Option(help="The gates, as YAML.")],
    name: Annotated[
        str | None, typer.Option(help="Registered model; what the policy names if not given.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a gate.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask and tell only; measure and change nothing.")
    ] = False,
    remeasure: Annotated[
        bool, typer.Option("--remeasure", help="Measure even where a bench did so already.")
    ] = False,
    require_approval: Annotated[
        bool, typer.Option("--require-approval", help="Wait for: harness registry approve.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Makes the best of the given drafters champion, if it passes every gate of the policy.

    Candidates and champion are measured together, unless a bench has done so.
    """
    settings = load_settings()
    approval = True if require_approval else None
    gates = load_config(Policy, policy, overrides or (), require_approval=approval)
    model = name or gates.model
    if model is None:
        raise ConfigError(
            "expected a registered model, found none", f"--name, or model: in {policy}"
        )
    store = open_store(settings)
    with render.progress() as progress:
        promotion = promote(
            references,
            model,
            gates,
            settings,
            store,
            measure=_measure_by(gates, policy, settings, store, progress, is_new=remeasure),
            is_dry_run=dry_run,
            is_remeasuring=remeasure,
            progress=progress,
        )
    render.show_json(promotion) if as_json else _show(promotion)
    if promotion.is_refused:
        raise typer.Exit(_REFUSED)


def _measure_by(
    policy: Policy,
    policy_path: Path,
    settings: Settings,
    store: Store,
    progress: ProgressFn,
    *,
    is_new: bool,
) -> MeasureFn:
    """The way `harness bench` measures, by the policy's bench.yaml."""
    config_path = policy_path.parent / policy.bench if policy.bench else None

    def measure(references: Sequence[str]) -> str:
        # Late: a bench imports what a promotion over finished evidence never needs.
        from harness.commands.benching import bench_drafters  # noqa: PLC0415

        config = load_config(
            BenchConfig,
            config_path,
            drafters=tuple(references),
            is_checking_parity=policy.require_parity or None,
        )
        render.log(f"no bench measured them together: measuring {', '.join(references)}")
        return bench_drafters(config, settings, store, progress, is_reusing=not is_new).run_id

    return measure


def _show(promotion: Promotion) -> None:
    if len(promotion.candidates) > 1 and any(promotion.candidates.values()):
        ranked = sorted(promotion.candidates.items(), key=lambda item: -(item[1] or 0.0))
        render.show_table("candidates, best first", ("reference", "figure"), ranked)
    render.show_table(
        f"{promotion.reference} for {promotion.model}",
        ("gate", "required", "found", "passed"),
        [(g.name, g.required, g.found, _answer(g)) for g in promotion.gates],
    )
    for reason in promotion.passed_over:
        render.log(f"no evidence: {reason}")
    for flag in promotion.flags:
        render.warn(f"the bench says: {flag}", hanging=_HANGING)
    bench = promotion.bench_run_id
    render.show_facts(
        promotion.action,
        {
            "champion before": promotion.from_version,
            "champion now": promotion.to_version or promotion.from_version,
            "evidence": f"bench run {bench}" if bench else "none: nothing measured them together",
            "weights": f"sha256 {promotion.weights_digest}",
        },
    )
    if promotion.to_measure:
        words = " ".join(f"--drafter {reference}" for reference in promotion.to_measure)
        render.show_text(f"it would measure first: harness bench {words}")
    if promotion.action == "waits for approval":
        digest = promotion.weights_digest[:12]
        render.show_text(
            f"after: harness registry approve {promotion.model} {digest}\nrun this command again"
        )


def _answer(gate: Gate) -> str | None:
    return None if gate.is_passed is None else "yes" if gate.is_passed else "NO"
