"""`harness gc`: free the files of checkpoints that are not worth their disk."""

from typing import Annotated

import typer

from harness import render
from harness.commands.options import AsJson
from harness.settings import load_settings
from harness.tracking.store import open_store
from harness.training.freeing import Held, Retention, free_checkpoints, plan_freeing

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    *,
    keep: Annotated[int, typer.Option(min=1, help="How many of each training's best stay.")],
    run: Annotated[
        list[str] | None, typer.Option(help="Only this training, by its whole id; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go; what happens without --yes.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Shows the bytes of every checkpoint, and with --yes deletes those that nothing keeps.

    Kept are the best and the last of each training, every one with an alias or being measured, and
    their parents.
    Figures, digests and uploaded copies stay in the store.
    """
    settings = load_settings()
    store = open_store(settings)
    plan = plan_freeing(settings, store, keep, run or ())
    render.show_json(plan) if as_json else _show(plan)
    if not yes or dry_run:
        render.log("nothing was deleted; --yes deletes it")
        return
    with render.progress() as progress:
        gone = free_checkpoints(settings, store, keep, run or (), progress=progress)
    render.log(f"freed {sum(held.num_bytes for held in gone):,} bytes of {len(gone)} checkpoint(s)")


def _show(plan: Retention) -> None:
    render.show_table(
        "checkpoints on disk",
        ("run", "epoch", "bytes", "uploaded", "stays"),
        [_row(held) for held in plan.checkpoints],
    )
    facts = {
        "to free": f"{plan.num_bytes_to_free:,} bytes in {len(plan.to_free)} checkpoint(s)",
        "on disk": f"{sum(held.num_bytes for held in plan.checkpoints):,} bytes",
    }
    render.show_facts("retention", facts)


def _row(held: Held) -> tuple[object, ...]:
    size = f"{held.num_bytes:,}"
    return (held.run_name, held.epoch, size, held.is_uploaded, held.kept_because or "NO: may go")
