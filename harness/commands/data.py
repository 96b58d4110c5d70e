"""`harness data`: prompts -> conversations -> tokens -> hidden states, one folder each."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import AsJson, RequiredVerifier
from harness.config.load import load_config
from harness.corpus.hidden_states import ExtractConfig
from harness.corpus.hidden_states import extract as extract_states
from harness.corpus.manifest import Manifest
from harness.corpus.regeneration import RegenerateConfig
from harness.corpus.regeneration import regenerate as regenerate_answers
from harness.corpus.tokens import PrepareConfig
from harness.corpus.tokens import prepare as prepare_tokens
from harness.drafter.verifier import Verifier
from harness.render import progress, show_facts, show_json, warn
from harness.settings import load_settings, share_cores

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="prompts -> conversations -> tokens -> hidden states",
)

_Out = Annotated[Path, typer.Option(help="The stage's folder; unfinished work in it is taken up.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")]


@app.command()
def regenerate(
    *,
    prompts: Annotated[Path, typer.Option(help="JSONL: id, category and prompt (or turns).")],
    verifier: RequiredVerifier,
    out: _Out,
    max_tokens: Annotated[
        int | None, typer.Option(help="New tokens per answer at most (64).")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests under way at once (32).")
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option(help="Evaluation prompts: shared ones are refused.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 on CPU, the verifier's own on a GPU.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Prompt and answer tokens at most.")
    ] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="GPUs per verifier (1).")] = None,
    port: Annotated[int | None, typer.Option(help="Of the server; a free one if left out.")] = None,
    overwrite: _Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Has the verifier answer every prompt, greedily, through a vLLM that is started for it."""
    settings = load_settings()
    config = load_config(
        RegenerateConfig,
        None,
        max_tokens=max_tokens,
        concurrency=concurrency,
        dtype=dtype,
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel_size,
        port=port,
    )
    with progress() as report:
        result = regenerate_answers(
            prompts,
            Verifier.load(verifier, settings),
            out,
            config,
            cache_dir=settings.cache_dir,
            exclude=exclude,
            overwrite=overwrite,
            progress=report,
        )
    if num_refused := result.manifest.counts["refused"]:
        warn(f"{num_refused} prompts were refused by the server: {out / 'refused.jsonl'}")
    _show(out, result.manifest, as_json, answer_tokens_per_s=result.tokens_per_s)


@app.command()
def prepare(
    *,
    conversations: Annotated[Path, typer.Option(help="Folder of `harness data regenerate`.")],
    verifier: RequiredVerifier,
    out: _Out,
    seq_length: Annotated[int | None, typer.Option(help="Tokens per row at most (2048).")] = None,
    overwrite: _Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Writes token ids, a loss mask on the answers alone, and token counts."""
    settings = load_settings()
    config = load_config(PrepareConfig, None, seq_length=seq_length)
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
    _show(out, manifest, as_json)


@app.command()
def extract(
    *,
    tokens: Annotated[Path, typer.Option(help="Folder of `harness data prepare`.")],
    verifier: RequiredVerifier,
    out: _Out,
    aux_layers: Annotated[str | None, typer.Option(help="Layer ids, as in 2,15,27.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the stored states (float32).")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens per forward pass (CPU 512, GPU 16384).")
    ] = None,
    overwrite: _Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Writes the verifier's hidden states for every row: the finished corpus."""
    share_cores()
    settings = load_settings()
    config = load_config(
        ExtractConfig,
        None,
        aux_layer_ids=aux_layers.split(",") if aux_layers else None,
        dtype=dtype,
        batch_tokens=batch_tokens,
    )
    with progress() as report:
        manifest = extract_states(
            tokens,
            Verifier.load(verifier, settings),
            out,
            config,
            cache_dir=settings.cache_dir,
            overwrite=overwrite,
            progress=report,
        )
    _show(out, manifest, as_json)


def _show(out: Path, manifest: Manifest, as_json: bool, **more: object) -> None:
    if as_json:
        show_json(manifest)
        return
    facts = {**manifest.counts, "megabytes": manifest.files.num_bytes / 1e6, **more}
    show_facts(f"{out}  {manifest.stage} {manifest.digest[:12]}", facts)
