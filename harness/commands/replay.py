"""`harness replay`: acceptance length from the verifier's hidden states, without a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from eval.replayresult import DrafterReplay, PositionRow, ReplayResult, ReplayRow
from eval.result import ALL
from harness.commands.options import AsJson, Drafters, OptionalVerifier, Prompts
from harness.commands.replaying import replay_drafters
from harness.config.load import load_config
from harness.config.replay import ReplayConfig
from harness.render import interval_text, log, progress, show_json, show_table, show_text
from harness.settings import load_settings, share_cores
from harness.tracking import names
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_MOST_SHOWN = 3
"""Drafters whose breakdowns are on the screen; those of all are in the page."""

_Corpus = Annotated[str | None, typer.Option(help="A folder of harness data extract.")]
_K = Annotated[int | None, typer.Option(help="Tokens proposed per draft, 1 to 16.")]
_Set = Annotated[list[str] | None, typer.Option("--set", help="A key of the YAML: max_tokens=64.")]


@app.command()
def replay(
    *,
    config: Annotated[Path | None, typer.Argument(help="replay.yaml; flags win over it.")] = None,
    drafter: Drafters = None,
    verifier: OptionalVerifier = None,
    corpus: _Corpus = None,
    prompts: Prompts = None,
    k: _K = None,
    overrides: _Set = None,
    as_json: AsJson = False,
) -> None:
    """Replays drafters over what the verifier said: what a server would accept, without one.

    Example: harness replay --drafter run:ID --prompts prompts.jsonl --k 5

    Next: harness bench, for the speed (what is computed: docs/replay.md)
    """
    share_cores()
    settings = load_settings()
    resolved = load_config(
        ReplayConfig,
        config,
        overrides or (),
        drafters=drafter or None,
        verifier=verifier,
        corpus=corpus,
        prompts=prompts,
        k=k,
    )
    with progress() as report:
        done = replay_drafters(resolved, settings, open_store(settings), report)
    log(f"run {done.run_id}; result {done.result_path}; page {done.report_path}")
    if as_json:
        show_json(done.result)
    else:
        show_replay(done.result)


def show_replay(result: ReplayResult) -> None:
    """Tables of a result, and below what they mean."""
    named = names.short_references(one.drafter for one in result.drafters)
    show_table(
        f"{result.num_answer_tokens} answer tokens of {result.drafters[0].pooled().num_prompts} "
        f"prompts, {result.confidence:.0%} intervals by prompt",
        ("drafter", "K", "acceptance length", "emitted", "all pos.", "ceiling"),
        [
            (named[one.drafter], *_figures(row))
            for one in result.drafters
            for row in one.rows
            if row.category == ALL
        ],
    )
    for line in _explanation(result):
        show_text(line)
    shown = result.drafters
    if len(shown) > _MOST_SHOWN:
        shown = (max(shown, key=lambda one: one.pooled().acceptance.num_accepted),)
        show_text(f"Below: {named[shown[0].drafter]}. The page has all drafters.")
    _show_categories(shown, result.k, named)
    _show_groups(
        "by place in the answer, all positions",
        "place",
        [(named[one.drafter], one.by_position) for one in shown],
    )
    _show_groups(
        "by whether the drafter can propose the next token, all positions",
        "next token",
        [(named[one.drafter], one.by_token) for one in shown],
    )


def _explanation(result: ReplayResult) -> list[str]:
    """What the figures are, in lines that fit a screen of 80 columns."""
    greedy = result.greedy
    beyond = "counted, as a server does" if result.is_past_end_known else "not known, not counted"
    seconds = sum(one.replay_s for one in result.drafters)
    states = "there already" if result.states_s is None else f"{result.states_s:.1f} s"
    return [
        "acceptance length: the walk, steps begin where a server would begin them.",
        "all pos.: all positions, a step begins at every token, as in training.",
        "emitted: the walk without what was accepted past the end of an answer.",
        "ceiling: right wherever the draft vocabulary has the token (largest K).",
        f"Tokens past the end of an answer: {beyond}.",
        f"Answer tokens that are the verifier's own argmax: {greedy.num_equal} of "
        f"{greedy.num_checked} checked.",
        f"Answers and hidden states: {states}; replay {seconds:.2f} s, {result.dtype}.",
    ]


def _figures(row: ReplayRow) -> tuple[object, ...]:
    emitted, everywhere = row.acceptance_length_emitted, row.everywhere_length
    return (
        row.k,
        interval_text(row.acceptance_length),
        f"{emitted.value:.2f}" if emitted else None,
        f"{everywhere.value:.2f}" if everywhere else None,
        f"{row.ceiling:.2f}" if row.ceiling else None,
    )


def _show_categories(drafters: tuple[DrafterReplay, ...], k: int, named: Mapping[str, str]) -> None:
    rows = [
        (
            named[drafter.drafter],
            row.category,
            row.num_prompts,
            interval_text(row.acceptance_length),
            f"{row.everywhere_length.value:.2f}" if row.everywhere_length else None,
        )
        for drafter in drafters
        for row in drafter.rows
        if row.k == k and row.category != ALL
    ]
    if rows:
        columns = ("drafter", "category", "prompts", "acceptance length", "all pos.")
        show_table(f"by category, K = {k}", columns, rows)


def _show_groups(
    title: str,
    column: str,
    groups: list[tuple[str, tuple[PositionRow, ...]]],
) -> None:
    rows = [
        (
            drafter,
            row.label,
            f"{row.share:.0%}",
            f"{row.length:.2f}",
            " ".join(f"{rate:.2f}" for rate in row.rate_at),
        )
        for drafter, found in groups
        for row in found
    ]
    if rows:
        show_table(title, ("drafter", column, "share", "length", "right at 1 to K"), rows)
