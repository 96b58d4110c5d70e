"""`harness doctor`: what is wrong with this machine or store, and how to mend it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.commands.preflight import check_step
from harness.errors import HarnessError
from harness.settings import Settings, load_settings
from harness.tracking.audit import Check
from harness.tracking.health import check_machine, check_store
from harness.tracking.preflight import check_clock, check_gpus, check_versions
from harness.tracking.reaping import OpenRun, open_runs, reap
from harness.tracking.security import check_security
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_PREREQUISITE = 3


@app.command()
def main(
    *,
    do_reap: Annotated[
        bool, typer.Option("--reap", help="Close runs whose process is gone, as KILLED.")
    ] = False,
    is_security: Annotated[
        bool, typer.Option("--security", help="List instead what is open, and to whom.")
    ] = False,
    step: Annotated[
        Path | None,
        typer.Option("--for", metavar="YAML", help="What a training or bench needs of it, too."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Checks this machine and the store; exit code 3 when something must be mended.

    Example: harness doctor --for experiments/smollm2-135m/train.yaml
    """
    settings = load_settings()
    if is_security:
        _end(check_security(settings), (), as_json=as_json, do_reap=False)
        return
    checks = [*check_machine(settings), *check_gpus(), check_versions()]
    checks.append(check_clock(settings.mlruns_dir))
    if step is not None:
        known = {check.name for check in checks}
        checks += [check for check in check_step(step, settings) if check.name not in known]
    more, runs = _look_into_store(settings, do_reap=do_reap)
    checks += more
    _end(checks, runs, as_json=as_json, do_reap=do_reap)


def _end(checks: Sequence[Check], runs: Sequence[OpenRun], *, as_json: bool, do_reap: bool) -> None:
    _show_json(checks, runs) if as_json else _show(checks, runs, do_reap=do_reap)
    if any(check.state == "failed" for check in checks):
        raise typer.Exit(_PREREQUISITE)


def _look_into_store(
    settings: Settings, *, do_reap: bool
) -> tuple[list[Check], tuple[OpenRun, ...]]:
    try:
        store = open_store(settings)
        runs = reap(store) if do_reap else open_runs(store)
        return check_store(settings, store), runs
    except HarnessError as error:
        found = Check(name="opening it", state="failed", found=error.message, fix=error.hint)
        return [found], ()


def _show(checks: Sequence[Check], runs: Sequence[OpenRun], *, do_reap: bool) -> None:
    rows = [(check.state, check.name, check.found, check.fix) for check in checks]
    render.show_table("this machine", ("state", "what", "found", "to mend it"), rows)
    if runs:
        title = "closed as KILLED" if do_reap else "runs that are open"
        render.show_table(
            title,
            ("run", "name", "owner", "process"),
            [(r.run_id, r.name, r.owner, r.verdict) for r in runs],
        )
    if any(run.verdict == "gone" for run in runs) and not do_reap:
        render.log("close the runs whose process is gone with: harness doctor --reap")
    if do_reap and not runs:
        render.log("no run to close: every open run has its process")


def _show_json(checks: Sequence[Check], runs: Sequence[OpenRun]) -> None:
    document = {
        "schema_version": 1,
        "checks": [check.model_dump(mode="json") for check in checks],
        "runs": [run.model_dump(mode="json") for run in runs],
    }
    render.show_json(json.dumps(document, indent=2))
