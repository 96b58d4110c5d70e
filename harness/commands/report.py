"""`harness report`: drafters and what was measured of them, as one page for whoever decides."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Against, Force, References
from harness.compare.comparison import compare
from harness.compare.page import render_report
from harness.digests import write_atomic
from harness.errors import ConfigError
from harness.render import log, show_text
from harness.settings import load_settings
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    references: References,
    *,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    against: Against = None,
    force: Force = False,
) -> None:
    """Writes one self-contained page: figures with intervals, differences, plots, evidence.

    Example: harness report run:2b0edb0d run:3e4c0d58 --out report.html
    """
    if out.suffix != ".html":
        raise ConfigError(f"expected a name that ends in .html, found {out}")
    settings = load_settings()
    found = compare(
        references,
        settings,
        open_store(settings),
        against=against,
        is_forced=force,
        is_single_allowed=True,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, render_report(found))
    log(f"{len(found.subjects)} drafters; open it in a browser, or print it")
    show_text(str(out))
