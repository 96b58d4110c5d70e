"""`harness bench`: acceptance length and decode speedup in vLLM, as one run of the store."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from eval.parityresult import ParityReport
from eval.records import StepCost
from eval.result import ALL, BenchResult, BenchRow
from harness.commands.benching import bench_drafters
from harness.commands.benchplan import describe_bench
from harness.commands.benchtune import bench_tuned, show_tuning
from harness.commands.options import AsJson, Drafters, OptionalVerifier, Prompts
from harness.config.bench import BenchConfig
from harness.config.load import load_config
from harness.errors import ConfigError
from harness.render import (
    interval_text,
    log,
    progress,
    show_facts,
    show_json,
    show_table,
    show_text,
    warn,
)
from harness.settings import load_settings
from harness.tracking import names
from harness.tracking.store import open_store
from harness.training.dryrun import find_stand_in

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_REFUSED_EXIT = 4
_CEILING = (1.0, 2.0, 3.0, 4.0)
"""Acceptance lengths of `--ceiling`; those above K + 1 are left out."""
_MOST_UNEQUAL = 5
_HANGING = 4

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
    reuse: _Reuse = False,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
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
    store, tuning = open_store(settings), None
    with progress() as report:
        if tune:
            measured, tuning = bench_tuned(resolved, settings, store, report)
        else:
            measured = bench_drafters(resolved, settings, store, report, is_reusing=reuse)
    log(f"run {measured.run_id}")
    log(f"result {measured.result_path}")
    log(f"page {measured.report_path}")
    if as_json:
        show_json(measured.result)
    else:
        show_result(measured.result)
        if tuning is not None:
            show_tuning(tuning)
    found = measured.result
    is_broken = any(row.lossless and row.lossless.is_broken for row in found.pooled())
    if is_broken or (found.parity is not None and not found.parity.is_passed):
        raise typer.Exit(_REFUSED_EXIT)


def show_result(result: BenchResult) -> None:
    """Tables of a result, each row explained by a line below."""
    spec = result.spec
    named = names.short_references(spec.arm_names)
    show_table(
        f"{len(spec.prompts)} prompts, {spec.sampling.max_tokens} tokens at most, "
        f"{spec.confidence:.0%} intervals by prompt, {result.pairing}",
        ("drafter", "K", "conc.", "acceptance length", "decode speedup", "TPOT ms", "equal"),
        [_row(row, named) for row in result.pooled()],
    )
    best = {(row.drafter, row.k, row.concurrency) for row in _fastest(result)}
    by_category = [
        row
        for row in result.results
        if row.category != ALL and (row.drafter, row.k, row.concurrency) in best
    ]
    if by_category:
        show_table(
            "by category" + (", each drafter at its fastest K" if len(spec.k) > 1 else ""),
            ("drafter", "K", "conc.", "category", "asked", "acceptance length", "decode speedup"),
            [_category_row(row, named) for row in by_category],
        )
    for row in result.pooled():
        rates = ", ".join(f"{rate:.3f}" for rate in row.acceptance_rate_at)
        title = f"{named[row.drafter]} K={row.k} c={row.concurrency}"
        show_text(f"{title}: {row.why or 'nothing was drafted'}", hanging=_HANGING)
        show_text(f"  accepted at position 1..{row.k}: {rates or '-'}")
        for flag in row.flags:
            warn(f"{title}: {flag}", hanging=_HANGING)
    if result.acceptance_rows:
        show_table(
            "acceptance at a smaller K, in the engine of the largest one",
            ("drafter", "K", "acceptance length"),
            [
                (named[r.drafter], r.k, interval_text(r.acceptance_length))
                for r in result.acceptance_rows
                if r.category == ALL
            ],
        )
    if result.ceilings:
        show_table(
            "speed at an acceptance length, for a drafter of this size",
            ("drafter", "K", "conc.", "acceptance length", "decode speedup", "measured"),
            [
                (named[p.drafter], p.k, p.concurrency, p.acceptance_length,
                 p.decode_speedup, p.is_measured)
                for p in result.ceilings
            ],
        )  # fmt: skip
    for cost in result.step_costs:
        show_text(_cost_text(cost, named), hanging=_HANGING)
    if result.parity is not None:
        _show_parity(result.parity, named)
    if len(spec.k) > 1:
        for concurrency, row in result.best_k().items():
            name = named[row.drafter]
            show_text(f"fastest at concurrency {concurrency}: {name} with K={row.k}")


def _fastest(result: BenchResult) -> list[BenchRow]:
    """Of each drafter and concurrency the row of the fastest K."""
    rows: dict[tuple[str, int], BenchRow] = {}
    for row in result.pooled():
        held = rows.get((row.drafter, row.concurrency))
        if held is None or row.decode_speedup.value > held.decode_speedup.value:
            rows[row.drafter, row.concurrency] = row
    return list(rows.values())


def _show_parity(parity: ParityReport, named: Mapping[str, str]) -> None:
    for row in parity.rows:
        title = f"{named[row.drafter]} K={row.k} c={row.concurrency}"
        show_text(f"parity {title}: {row.verdict}", hanging=_HANGING)
        for request in row.unequal[:_MOST_UNEQUAL]:
            warn(
                f"parity {title}: {request.prompt_id} turn {request.turn} served "
                f"{list(request.served)}, replayed {list(request.replayed)} (drafts by number of "
                "accepted tokens)",
                hanging=_HANGING,
            )
    states = "were kept" if parity.states_s is None else f"took {parity.states_s:.1f} s"
    show_text(
        f"parity: {parity.num_answers} answers of {parity.num_answer_tokens} tokens in "
        f"{parity.dtype}, replayed in {parity.replay_s:.1f} s; their hidden states {states}",
        hanging=_HANGING,
    )


def _cost_text(cost: StepCost, named: Mapping[str, str]) -> str:
    steps = ", ".join(f"{step:.1f} ms at K={k}" for k, step in sorted(cost.step_ms.items()))
    text = (
        f"{named[cost.drafter]} c={cost.concurrency}: a step takes {steps}; "
        f"a plain one {cost.plain_step_ms:.1f} ms"
    )
    if cost.fixed_ms is None or cost.per_token_ms is None:
        return text
    return f"{text}; {cost.fixed_ms:.1f} ms and {cost.per_token_ms:.1f} ms per proposed token"


def _row(row: BenchRow, named: Mapping[str, str]) -> tuple[object, ...]:
    tpot = f"{row.baseline_tpot_ms.value:.1f} -> {row.tpot_ms.value:.1f}"
    equal = f"{row.lossless.num_equal}/{row.lossless.num_compared}" if row.lossless else None
    return (
        named[row.drafter],
        row.k,
        row.concurrency,
        interval_text(row.acceptance_length),
        interval_text(row.decode_speedup),
        tpot,
        equal,
    )


def _category_row(row: BenchRow, named: Mapping[str, str]) -> tuple[object, ...]:
    return (
        named[row.drafter],
        row.k,
        row.concurrency,
        row.category,
        row.num_prompts,
        interval_text(row.acceptance_length),
        interval_text(row.decode_speedup),
    )


def _numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{flag}: expected numbers such as 1,2,3, found {text!r}") from error
