"""`harness convert`: a drafter in the other format, without loss."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import AsJson
from harness.drafter.convert import Target, convert_drafter
from harness.render import show_facts, show_json
from harness.settings import load_settings
from harness.tracking.resolve import FORMS, resolve_drafter

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def convert(
    *,
    drafter: str = typer.Option(help=f"The drafter: {FORMS}."),
    to: Annotated[Target, typer.Option(help="The format to write.")],
    out: Annotated[Path, typer.Option(help="A new or empty folder.")],
    verifier_name: str | None = typer.Option(
        None, help="Name of the verifier for a nested config that would have none."
    ),
    as_json: AsJson = False,
) -> None:
    """Write a drafter in another format, with every tensor bit-equal and every fact kept.

    Example: harness convert --drafter run:ID --to flat --out served/

    Next: harness verify --drafter OUT --verifier REF
    """
    path = resolve_drafter(drafter, load_settings()).path
    done = convert_drafter(path, to, out, verifier_name=verifier_name)
    if as_json:
        show_json(done)
        return
    renamed = ", ".join(done.key_map) or "none"
    show_facts(
        f"{done.format} drafter {done.path}", {"digest": done.digest, "names changed": renamed}
    )
