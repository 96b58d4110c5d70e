"""`harness sweep`: searches trainings for what decodes fastest, and looks after searches."""

import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from typer._click import Context
from typer.core import TyperGroup

from harness.commands.benching import bench_drafters
from harness.commands.benchthere import measure_there
from harness.commands.launching import AUTO, LOCAL, Address, Where, place_of
from harness.commands.preflight import begin
from harness.commands.sweepshow import (
    front_of,
    require_best,
    require_trial,
    show_sweep,
    telling,
    title_of,
)
from harness.config.bench import BenchConfig
from harness.config.load import dump_yaml, load_config
from harness.config.sweep import SweepConfig
from harness.errors import ConfigError, WorkError
from harness.launch.ports import Launcher
from harness.render import (
    live_table,
    log,
    progress,
    show_facts,
    show_json,
    show_table,
    show_text,
    warn,
)
from harness.settings import load_settings
from harness.sweep.dryrun import describe
from harness.sweep.figures import importances
from harness.sweep.leases import coordinator_lock, read_coordinator
from harness.sweep.ports import Pause
from harness.sweep.records import Trial, TrialState
from harness.sweep.repair import repair as repair_sweep
from harness.sweep.serving import Measured
from harness.sweep.session import (
    Ended,
    Prepared,
    prepare,
    reopen,
    require_trainable,
    require_unused,
    run_sweep,
)
from harness.sweep.space import spell
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import retry_origin
from harness.sweep.view import (
    COLUMNS,
    best_config,
    conclusion,
    overview,
)
from harness.tracking.store import Store, open_store
from harness.training.dryrun import describe_training, find_stand_in
from harness.training.preflight import check_training


class _Group(TyperGroup):
    """Takes `harness sweep FILE` for `harness sweep run FILE`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Puts in `run` where no other command is named."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Group, add_completion=False, rich_markup_mode=None, no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="Name of the sweep.")]
_Set = Annotated[list[str] | None, typer.Option("--set", help="A key of the YAML: n_trials=20.")]
_Json = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]


@app.callback()
def main() -> None:
    """Searches trainings for decode speedup; the same command goes on where it stopped."""


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="sweep.yaml; flags win over it.")],
    *,
    n_trials: Annotated[int | None, typer.Option(help="Trials in all, the base included.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which none starts.")] = None,
    workers: Annotated[int | None, typer.Option(help="Trials at once.")] = None,
    max_failures: Annotated[int | None, typer.Option(help="Failed trials that stop it.")] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on with the sweep of this name; else there must be none.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would do.")] = False,
    as_json: _Json = False,
    overrides: _Set = None,
    launcher: Where = LOCAL,
    address: Address = AUTO,
) -> None:
    """Runs a sweep, or goes on with the one of its name."""
    settings = load_settings()
    resolved = load_config(
        SweepConfig,
        config,
        overrides or (),
        n_trials=n_trials,
        timeout_s=timeout,
        workers=workers,
        max_failures=max_failures,
    )
    with place_of(launcher, address, settings) as place:
        prepared = prepare(resolved, settings, place)
        for text in prepared.warnings:
            warn(text)
        if not resume:
            require_unused(prepared)
        store = open_store(settings)
        if dry_run:
            _describe(prepared, config, store)
            return
        ended = _run(prepared, store, place)
    status(resolved.name, as_json=as_json)
    log(f"run {ended.parent_run_id}; figures on it: {', '.join(ended.figures) or 'none'}")
    if ended.pause is Pause.FAILURES:
        raise WorkError(
            f"{resolved.max_failures} trials failed, the sweep stopped",
            f"see why with harness sweep status {resolved.name}; then harness sweep retry",
        )
    if ended.pause is Pause.TIMEOUT:
        warn("the time was up before the budget; the same command goes on")


def _run(prepared: Prepared, store: Store, place: Launcher | None) -> Ended:
    """Searches, and measures survivors: here, or each time on a host of the launcher."""
    settings = prepared.place.settings
    if place is None:
        begin("sweep", check_training(prepared.base, settings, is_anywhere=True))
    require_trainable(prepared, store)
    with live_table() as table:

        def watch(study: SweepStudy, trials: tuple[Trial, ...]) -> None:
            table(title_of(study, trials), COLUMNS, overview(study, trials).rows)

        with progress(is_plain=True) as report:

            def measure(bench: BenchConfig) -> Measured:
                if place is not None:
                    return measure_there(bench, settings, store, place)
                return bench_drafters(bench, settings, store, report, is_reusing=True)

            return run_sweep(prepared, store, telling(measure), watch)


def _describe(prepared: Prepared, config: Path, store: Store) -> None:
    """Shows what a sweep would do; with its verifier's config beside it, inputs may be missing."""
    stand_in = find_stand_in(config)
    if stand_in is None:
        require_trainable(prepared, store)
    else:
        sections = describe_training(prepared.base, prepared.place.settings, stand_in)
        for title, facts in sections:
            show_facts(f"base {title}", facts)
    for title, facts in describe(prepared, store):
        show_facts(title, facts)


@app.command()
def status(name: _Name, *, as_json: _Json = False) -> None:
    """Every trial: how far it came, and why it ended."""
    if as_json:
        study, _ = reopen(name, load_settings())
        show_json(json.dumps([t.model_dump(mode="json") for t in study.trials()], indent=1))
        return
    show_sweep(name)


@app.command()
def best(name: _Name, as_json: _Json = False) -> None:
    """The best trial, served figures before predicted ones; several objectives: the front."""
    study, _ = reopen(name, load_settings())
    if as_json:
        is_front = study.config.is_multi_objective
        found = front_of(study) if is_front else [require_best(study)]
        show_json(json.dumps([trial.model_dump(mode="json") for trial in found], indent=1))
        return
    if study.config.is_multi_objective:
        columns = ("trial", "point", *(o.metric for o in study.config.objectives))
        rows = [(t.number, spell(t.params), *(t.values or ())) for t in front_of(study)]
        show_table(f"front of {name}", columns, rows)
        return
    trial = require_best(study)
    facts: dict[str, Any] = {"point": spell(trial.params), "origin": trial.origin}
    if trial.values:
        facts[study.config.objectives[0].metric] = trial.values[0]
    facts |= {f"served {key}": value for key, value in trial.served.items()}
    facts |= {"reference": f"run:{trial.facts.get('run_id')}", "claim": conclusion(study)}
    show_facts(f"trial {trial.number} of {name}", facts)


@app.command()
def export(
    name: _Name,
    *,
    trial: Annotated[int | None, typer.Option(help="Number of the trial; else the best.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; else stdout.")] = None,
) -> None:
    """The best point as a YAML that `harness train` takes."""
    study, _ = reopen(name, load_settings())
    chosen = require_best(study) if trial is None else require_trial(study, trial)
    text = dump_yaml(best_config(study, chosen))
    if out is None:
        show_text(text.rstrip("\n"))
    else:
        out.write_text(text, encoding="utf-8")
        log(f"trial {chosen.number} written to {out}; train it with: harness train {out}")


@app.command()
def importance(name: _Name) -> None:
    """What separates good trials from bad ones, by key (PED-ANOVA)."""
    study, _ = reopen(name, load_settings())
    for index, objective in enumerate(study.config.objectives):
        found = importances(study, index)
        if not found:
            warn(f"{objective.metric}: too few finished trials, or all equally good")
        else:
            show_facts(f"importance for {objective.metric}", found)


@app.command()
def stop(name: _Name) -> None:
    """Asks the sweep's coordinator on this host to let trials save and stop."""
    settings = load_settings()
    owner = read_coordinator(settings.sweeps_dir / name)
    if owner is None:
        raise ConfigError(f"expected a running sweep {name!r} on this host, found none")
    os.kill(owner.pid, signal.SIGINT)
    log(f"asked process {owner.pid} to stop; trials save a checkpoint first")


@app.command()
def retry(
    name: _Name,
    *,
    trial: Annotated[int | None, typer.Option(help="One failed trial; else all of them.")] = None,
) -> None:
    """Puts failed trials in front again; the next call of the sweep runs them."""
    study, place = reopen(name, load_settings())
    with coordinator_lock(place.folder):
        known = {t.origin for t in study.trials()}
        chosen = [
            t
            for t in study.trials()
            if t.state is TrialState.FAIL
            and trial in {None, t.number}
            and retry_origin(t.number) not in known
        ]
        for failed in chosen:
            study.enqueue(failed.params, retry_origin(failed.number))
    if not chosen:
        raise ConfigError(f"expected failed trials of {name!r} to retry, found none")
    log(f"put in front: {', '.join(str(t.number) for t in chosen)}; now run the sweep again")


@app.command()
def repair(name: _Name) -> None:
    """Puts the study and MLflow in agreement after a crash between two writes."""
    settings = load_settings()
    study, place = reopen(name, settings)
    with coordinator_lock(place.folder):
        lines = repair_sweep(study, open_store(settings), place)
    for line in lines:
        show_text(line)
    log("nothing to mend" if not lines else f"{len(lines)} findings")
