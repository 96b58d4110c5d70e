"""`harness data prompts`: sets of prompts to one mixture, nothing of an evaluation in it."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.data.stage import Out, Overwrite, show_stage
from harness.commands.options import AsJson
from harness.config.load import load_config
from harness.config.prompts import PromptsConfig
from harness.corpus.promptset import collect_prompts
from harness.drafter.verifier import Verifier
from harness.render import progress, show_table
from harness.settings import load_settings


def prompts(
    config_path: Annotated[Path, typer.Argument(metavar="FILE", help="prompts.yaml.")],
    *,
    out: Out,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="A key of the YAML: num_tokens=500000.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Collects, filters and mixes prompts: languages, lengths, duplicates, evaluation overlap."""
    settings = load_settings()
    config = load_config(PromptsConfig, config_path, overrides or ()).below(settings.root_dir)
    with progress() as report:
        result = collect_prompts(
            config,
            Verifier.load(config.verifier, settings),
            out,
            cache_dir=settings.cache_dir,
            overwrite=overwrite,
            progress=report,
        )
    if not as_json:
        rows = [
            (p.source, p.num_candidates, p.num_prompts, p.answer_tokens, p.num_tokens, p.share)
            for p in result.portions
        ]
        columns = ("source", "candidates", "prompts", "tokens each", "tokens in all", "share")
        show_table("mixture by generated tokens", columns, rows)
    show_stage(out, result.manifest, as_json)
