"""`harness inspect`: the facts of a drafter, or the difference of two."""

import typer

from harness.commands.options import AsJson
from harness.drafter.describe import Comparison, Description, compare, describe
from harness.drafter.drafter import Drafter
from harness.render import show_facts, show_json, show_table, show_text
from harness.settings import Settings, load_settings
from harness.tracking.resolve import FORMS, resolve_drafter

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def inspect(
    drafter: str = typer.Argument(help=f"A drafter: {FORMS}."),
    other: str | None = typer.Argument(None, help="Another one, to show what differs."),
    digest: bool = typer.Option(False, "--digest", help="Hash the weights whatever their size."),
    as_json: AsJson = False,
) -> None:
    """Show every fact of a drafter, read from its config and headers in below a second.

    Example: harness inspect mlruns/checkpoints/RUN/0

    Next: harness verify --drafter REF --verifier REF
    """
    settings = load_settings()
    left = _describe(drafter, settings, digest)
    if other is None:
        show_json(left) if as_json else _show(left)
        return
    difference = compare(left, _describe(other, settings, digest))
    show_json(difference) if as_json else _show_difference(difference)


def _describe(reference: str, settings: Settings, digest: bool) -> Description:
    found = resolve_drafter(reference, settings)
    loaded = Drafter.load(found.path)
    return describe(loaded, reference, recorded_digest=found.digest, digest=digest)


def _show(description: Description) -> None:
    heading = {"path": description.path, "digest": description.digest or "not computed (--digest)"}
    facts = {name: _text(value) for name, value in description.facts.items()}
    show_facts(f"drafter {description.reference}", heading | facts)
    rows = [(t.name, t.dtype, str(list(t.shape))) for t in description.tensors]
    show_table("tensors", ("name", "dtype", "shape"), rows)


def _show_difference(difference: Comparison) -> None:
    if not difference.differences:
        show_text("no difference")
        return
    rows = [(d.name, _text(d.left), _text(d.right)) for d in difference.differences]
    show_table("differences", ("fact", difference.left, difference.right), rows)


def _text(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items()) or None
    if isinstance(value, list | tuple):
        return ", ".join(str(inner) for inner in value) or None
    return value
