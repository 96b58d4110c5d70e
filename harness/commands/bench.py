"""`harness bench`: acceptance length and decode speedup in vLLM, as one run of the store."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eval.result import BenchResult
from harness.commands.benching import BenchRun, bench_drafters
from harness.commands.benchplan import describe_bench
from harness.commands.benchprofile import add_profile, show_profile
from harness.commands.benchshow import show_result
from harness.commands.benchtune import bench_tuned, show_tuning
from harness.commands.launching import AUTO, LOCAL, Address, Where, place_of, run_there
from harness.commands.options import AsJson, Drafters, OptionalVerifier, Prompts
from harness.commands.preflight import begin, check_bench
from harness.config.bench import BenchConfig
from harness.config.load import load_config
from harness.errors import ConfigError
from harness.render import (
    log,
    progress,
    show_facts,
    show_json,
)
from harness.settings import Settings, load_settings
from harness.tracking.store import open_store
from harness.training.dryrun import find_stand_in

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_REFUSED_EXIT = 4
_CEILING = (1.0, 2.0, 3.0, 4.0)
"""Acceptance lengths of `--ceiling`; those above K + 1 are left out."""

_K = Annotated[str | None, typer.Option(help="Tokens proposed per draft: 3 or 1,2,3,5.")]
_Concurrency = Annotated[str | None, typer.Option(help="Requests under way at once: 1 or 1,8,32.")]
_Set = Annotated[list[str] | None, typer.Option("--set", help="A key of the YAML: max_tokens=64.")]
_Also = Annotated[list[str] | None, typer.Option(help="A competitor: ngram or suffix.")]
_Ceiling = Annotated[
    bool,
    typer.Option("--ceiling", help="Speed at chosen acceptance lengths, without a drafter."),
]
_SwapCheck = Annotated[
    int | None, typer.Option("--swap-check", help="Drafters to repeat in fresh engines.")
]
_NoSwap = Annotated[bool, typer.Option("--no-swap", help="A fresh engine for every drafter.")]
_Parity = Annotated[
    bool, typer.Option("--parity", help="Replay the outputs without vLLM; counts must agree.")
]
_Tune = Annotated[
    bool, typer.Option("--tune", help="Try vLLM's settings first, keep those that are faster.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would measure.")]
_Profile = Annotated[
    bool, typer.Option("--profile", help="Tell afterwards where the time of a step goes.")
]
_Reuse = Annotated[
    bool, typer.Option("--reuse", help="Take an equal measurement that is finished already.")
]


@app.command()
def bench(
    *,
    config: Annotated[Path | None, typer.Argument(help="bench.yaml; flags win over it.")] = None,
    drafter: Drafters = None,
    verifier: OptionalVerifier = None,
    prompts: Prompts = None,
    k: _K = None,
    concurrency: _Concurrency = None,
    overrides: _Set = None,
    also: _Also = None,
    ceiling: _Ceiling = False,
    no_swap: _NoSwap = False,
    swap_check: _SwapCheck = None,
    parity: _Parity = False,
    tune: _Tune = False,
    profile: _Profile = False,
    reuse: _Reuse = False,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    launcher: Where = LOCAL,
    address: Address = AUTO,
) -> None:
    """Measures drafters in vLLM against their verifier alone, with intervals."""
    settings = load_settings()
    resolved = load_config(
        BenchConfig,
        config,
        overrides or (),
        drafters=drafter or None,
        verifier=verifier,
        prompts=prompts,
        k=_numbers("--k", k),
        concurrency=_numbers("--concurrency", concurrency),
        also=also or None,
        ceiling=_CEILING if ceiling else None,
        num_swap_checks=swap_check,
        is_swapping=False if no_swap else None,
        is_checking_parity=parity or None,
    )
    if dry_run:
        for title, facts in describe_bench(resolved, settings, find_stand_in(config)):
            show_facts(title, facts)
        return
    flags = {"--tune": tune, "--profile": profile, "--reuse": reuse, "--json": as_json}
    with place_of(launcher, address, settings) as place:
        if place is not None:
            run_there("bench", resolved, flags, settings, place, is_alone=True)
            return
    _check(resolved, settings)
    store, extras = open_store(settings), list[Callable[[], None]]()
    with progress() as report:
        if tune:
            measured, tuned = bench_tuned(resolved, settings, store, report)
            extras.append(partial(show_tuning, tuned))
        else:
            measured = bench_drafters(resolved, settings, store, report, is_reusing=reuse)
        if profile:
            extras.append(partial(show_profile, add_profile(measured, store, report)))
    _tell(measured, extras, as_json=as_json)
    _require_faithful(measured.result)


def _check(config: BenchConfig, settings: Settings) -> None:
    if config.verifier is not None:
        begin("bench", check_bench(config, settings))


def _require_faithful(found: BenchResult) -> None:
    """Ends with the exit code of a refusal where a drafter changed what the verifier says."""
    is_broken = any(row.lossless and row.lossless.is_broken for row in found.pooled())
    if is_broken or (found.parity is not None and not found.parity.is_passed):
        raise typer.Exit(_REFUSED_EXIT)


def _tell(measured: BenchRun, extras: Iterable[Callable[[], None]], *, as_json: bool) -> None:
    log(f"run {measured.run_id}")
    log(f"result {measured.result_path}")
    log(f"page {measured.report_path}")
    if as_json:
        show_json(measured.result)
        return
    show_result(measured.result)
    for show in extras:
        show()


def _numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{flag}: expected numbers such as 1,2,3, found {text!r}") from error
