"""`harness data vocab`: the tokens that a drafter can propose, from what the answers need."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.data.stage import Out, Overwrite, Trust, show_stage
from harness.commands.options import AsJson, RequiredVerifier
from harness.config.load import load_config
from harness.corpus.draftvocab import VocabConfig, build_vocab
from harness.drafter.check_tables import target_ids
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.drafter.vocab import Ids
from harness.render import warn
from harness.settings import Settings, load_settings
from harness.tracking.resolve import FORMS, resolve_drafter


def vocab(
    *,
    tokens: Annotated[Path, typer.Option(help="Folder of `harness data prepare`.")],
    verifier: RequiredVerifier,
    out: Out,
    size: Annotated[int | None, typer.Option(help="Tokens that the drafter can propose.")] = None,
    coverage: Annotated[
        float | None, typer.Option(help="Share of answer tokens to reach, as in 0.99.")
    ] = None,
    pin: Annotated[
        list[str] | None, typer.Option(help="A token id, or a text whose tokens are all in.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--from", help=f"Keep this drafter's vocabulary: {FORMS}.")
    ] = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Chooses the draft vocabulary: the most frequent answer tokens, special ones always in."""
    settings = load_settings()
    config = load_config(
        VocabConfig,
        None,
        size=size,
        coverage=coverage,
        pinned=pin or None,
        trust_remote_code=trust_remote_code or None,
    )
    manifest = build_vocab(
        tokens,
        Verifier.load(verifier, settings),
        out,
        config,
        parent_ids=_read_parent(parent, settings) if parent else None,
        parent_name=parent,
        cache_dir=settings.cache_dir,
        overwrite=overwrite,
    )
    counts = manifest.counts
    if counts["special_missing"]:
        warn(f"{counts['special_missing']} special tokens are not in the parent's vocabulary")
    show_stage(out, manifest, as_json, coverage=counts["covered_tokens"] / counts["answer_tokens"])


def _read_parent(reference: str, settings: Settings) -> Ids:
    return target_ids(Drafter.load(resolve_drafter(reference, settings).path))
