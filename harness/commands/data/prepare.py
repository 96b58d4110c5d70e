"""`harness data prepare`: conversations to token rows with a loss mask."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.data.stage import Out, Overwrite, Trust, show_stage
from harness.commands.options import AsJson, RequiredVerifier
from harness.config.load import load_config
from harness.corpus.tokens import PrepareConfig
from harness.corpus.tokens import prepare as prepare_tokens
from harness.drafter.verifier import Verifier
from harness.render import progress, warn
from harness.settings import load_settings


def prepare(
    *,
    conversations: Annotated[
        Path, typer.Option(help="Folder of `harness data regenerate`, or JSONL with answers.")
    ],
    verifier: RequiredVerifier,
    out: Out,
    seq_length: Annotated[int | None, typer.Option(help="Tokens per row at most (2048).")] = None,
    limit: Annotated[int | None, typer.Option(help="Conversations at most, by id.")] = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Writes token ids, a loss mask on the answers alone, token counts and statistics.html."""
    settings = load_settings()
    config = load_config(
        PrepareConfig,
        None,
        seq_length=seq_length,
        limit=limit,
        trust_remote_code=trust_remote_code or None,
    )
    with progress() as report:
        manifest = prepare_tokens(
            conversations,
            Verifier.load(verifier, settings),
            out,
            config,
            cache_dir=settings.cache_dir,
            overwrite=overwrite,
            progress=report,
        )
    if num_dropped := manifest.counts.get("dropped_conversations", 0):
        warn(f"{num_dropped} conversations give no row: {out / 'dropped.jsonl'}")
    show_stage(out, manifest, as_json)
