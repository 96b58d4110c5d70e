"""`harness data regenerate`: prompts to the verifier's own answers."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.data.stage import Out, Overwrite, show_stage
from harness.commands.options import AsJson, RequiredVerifier
from harness.commands.preflight import begin, check_regenerate
from harness.config.load import load_config
from harness.config.regenerate import RegenerateConfig
from harness.corpus.manifest import MANIFEST_NAME
from harness.corpus.regeneration import regenerate as regenerate_answers
from harness.drafter.verifier import Verifier
from harness.render import progress, warn
from harness.settings import load_settings

_Config = Annotated[
    Path | None, typer.Option(help="YAML with any of these and more; flags win over it.")
]
_MaxTokens = Annotated[int | None, typer.Option(help="New tokens per answer at most (64).")]
_Concurrency = Annotated[int | None, typer.Option(help="Requests under way at once (32).")]
_Endpoint = Annotated[
    str | None, typer.Option(help="A vLLM that runs already, as in http://host:8000.")
]
_ServedModel = Annotated[str | None, typer.Option(help="The verifier's name there.")]
_Exclude = Annotated[
    list[str] | None,
    typer.Option(help="Evaluation set, each of them: JSONL, package:... or hf:...; none is asked."),
]
_Reuse = Annotated[
    Path | None, typer.Option(help="An earlier folder: its answers to equal prompts are taken.")
]
_Dtype = Annotated[str | None, typer.Option(help="float32 on CPU, the verifier's own on a GPU.")]
_MaxModelLen = Annotated[int | None, typer.Option(help="Prompt and answer tokens at most.")]
_Gpus = Annotated[int | None, typer.Option(help="GPUs per verifier (1).")]
_Port = Annotated[int | None, typer.Option(help="Of the server; a free one if left out.")]
_Set = Annotated[list[str] | None, typer.Option("--set", help="A key of the YAML: top_p=0.95.")]


def regenerate(
    *,
    prompts: Annotated[
        Path, typer.Option(help="Folder of `harness data prompts`, or JSONL with id, prompt.")
    ],
    verifier: RequiredVerifier,
    out: Out,
    config: _Config = None,
    max_tokens: _MaxTokens = None,
    concurrency: _Concurrency = None,
    endpoint: _Endpoint = None,
    served_model: _ServedModel = None,
    exclude: _Exclude = None,
    reuse: _Reuse = None,
    dtype: _Dtype = None,
    max_model_len: _MaxModelLen = None,
    tensor_parallel_size: _Gpus = None,
    port: _Port = None,
    overrides: _Set = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Has the verifier answer every prompt, through a vLLM started for it or one that runs."""
    settings = load_settings()
    resolved = load_config(
        RegenerateConfig,
        config,
        overrides or (),
        max_tokens=max_tokens,
        concurrency=concurrency,
        endpoint=endpoint,
        served_model=served_model,
        dtype=dtype,
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel_size,
        port=port,
    )
    loaded = Verifier.load(verifier, settings)
    if not (out / MANIFEST_NAME).is_file() or overwrite:
        begin("regenerate", check_regenerate(loaded, out, resolved))
    with progress() as report:
        result = regenerate_answers(
            prompts,
            loaded,
            out,
            resolved,
            cache_dir=settings.cache_dir,
            exclude=exclude or (),
            reuse=reuse,
            overwrite=overwrite,
            progress=report,
        )
    if num_refused := result.manifest.counts["refused"]:
        warn(f"{num_refused} prompts have no answer: {out / 'refused.jsonl'}")
    show_stage(out, result.manifest, as_json, answer_tokens_per_s=result.tokens_per_s)
