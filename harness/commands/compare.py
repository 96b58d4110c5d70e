"""`harness compare`: drafters side by side, and whether one is faster than the other."""

import re
from collections.abc import Sequence

import typer

from eval.paired import percent_text
from eval.result import ALL
from harness.commands.options import Against, AsJson, Force, References
from harness.compare.comparison import compare
from harness.compare.differences import KeyDifference
from harness.compare.document import Comparison, Pair
from harness.render import interval_text, show_json, show_table, show_text, warn
from harness.settings import load_settings
from harness.tracking.store import open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_SHOWN_CHARACTERS = 38
_DIGEST = re.compile("[0-9a-f]{64}")
_DIGEST_CHARACTERS = 12


@app.command()
def main(
    references: References,
    *,
    against: Against = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Puts drafters side by side: what differs, what was measured, who is faster.

    Example: harness compare run:2b0edb0d run:3e4c0d58

    Next: harness report REF... --out report.html
    """
    settings = load_settings()
    found = compare(references, settings, open_store(settings), against=against, is_forced=force)
    show_json(found) if as_json else _show(found)


def _show(found: Comparison) -> None:
    labels = [subject.label for subject in found.subjects]
    _show_differences("settings that differ", labels, found.params)
    _show_differences("provenance that differs", labels, found.provenance)
    _show_figures(found)
    for subject in found.subjects:
        if subject.measured_in is None:
            warn(f"{subject.label} was not measured: harness bench --drafter {subject.reference}")
        for caution in subject.cautions:
            warn(f"{subject.label}: {caution}", hanging=4)
    for one in found.unlike:
        warn(f"unlike {one.what}: {', '.join(one.values)}", hanging=4)
    for pair in found.headline():
        _show_pair(pair)


def _show_differences(
    title: str, labels: Sequence[str], differences: Sequence[KeyDifference]
) -> None:
    if differences:
        rows = [(one.key, *map(_shortened, one.values)) for one in differences]
        show_table(title, ("key", *labels), rows)


def _shortened(value: str | None) -> str | None:
    if value is None or len(value) <= _SHOWN_CHARACTERS:
        return value
    if _DIGEST.fullmatch(value):
        return value[:_DIGEST_CHARACTERS]
    return f"{value[: _SHOWN_CHARACTERS - 3]}..."


def _show_figures(found: Comparison) -> None:
    if not found.figures:
        keys = list(dict.fromkeys(key for one in found.subjects for key in one.validation))
        rows = [(s.label, *(s.validation.get(key) for key in keys)) for s in found.subjects]
        show_table("of their trainings", ("drafter", *keys), rows)
        return
    show_table(
        "measured, over all prompts",
        ("drafter", "K", "conc.", "prompts", "acceptance length", "decode speedup"),
        [
            (f.label, f.k, f.concurrency, f.num_prompts, interval_text(f.acceptance_length),
             interval_text(f.decode_speedup))
            for f in found.figures
            if f.category == ALL
        ],
    )  # fmt: skip


def _show_pair(pair: Pair) -> None:
    at = "" if pair.concurrency is None else f", {pair.concurrency} at once"
    if len(pair.differences) > 1:
        show_table(
            f"{pair.second} against {pair.first}, K = {pair.k}{at}",
            ("category", "prompts", "faster by", "accepted tokens per step"),
            [
                (d.category, d.num_prompts,
                 percent_text(d.speedup_ratio) if d.speedup_ratio else None,
                 interval_text(d.acceptance_difference))
                for d in pair.differences
            ],
        )  # fmt: skip
    if pair.claim:
        show_text(pair.claim, hanging=2)
    show_text(pair.acceptance, hanging=2)
    if pair.speed and not pair.is_together:
        warn(
            "measured in two benches: each is held against its own baseline, but what changed on "
            "the machine in between is in no interval; harness bench measures them together",
            hanging=4,
        )
