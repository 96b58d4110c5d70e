"""`harness data extract`: token rows to the verifier's hidden states."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.data.stage import Out, Overwrite, Trust, show_stage
from harness.commands.options import AsJson, RequiredVerifier
from harness.commands.preflight import begin, check_extract
from harness.config.load import load_config
from harness.corpus.extraction import extract as extract_states
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.manifest import MANIFEST_NAME
from harness.drafter.verifier import Verifier
from harness.render import progress
from harness.settings import load_settings, share_cores

_Tokens = Annotated[Path, typer.Option(help="Folder of `harness data prepare`.")]
_Layers = Annotated[str | None, typer.Option(help="Layer ids, as in 2,15,27.")]
_Dtype = Annotated[
    str | None, typer.Option(help="Of the stored states: float32, bfloat16, float16, fp8.")
]
_BatchTokens = Annotated[
    int | None, typer.Option(help="Tokens per forward pass; by the free memory if not given.")
]
_Backend = Annotated[str | None, typer.Option(help="transformers, or vllm: started for it.")]
_DeviceMap = Annotated[
    str | None, typer.Option(help="transformers: auto spreads it over all GPUs.")
]
_Online = Annotated[
    bool, typer.Option("--online", help="Store validation rows; serve the rest in training.")
]
_Parallel = Annotated[int | None, typer.Option(help="vllm: GPUs of one verifier (1).")]
_Copies = Annotated[
    int | None, typer.Option(help="vllm: verifiers behind one port, each on its own GPUs (1).")
]
_Experts = Annotated[
    bool, typer.Option("--expert-parallel", help="vllm: whole experts of an MoE on each GPU.")
]
_Yes = Annotated[
    bool, typer.Option("--yes", help="Go on where it takes more than 20 GB or an hour.")
]


def extract(
    *,
    tokens: _Tokens,
    verifier: RequiredVerifier,
    out: Out,
    aux_layers: _Layers = None,
    dtype: _Dtype = None,
    batch_tokens: _BatchTokens = None,
    backend: _Backend = None,
    device_map: _DeviceMap = None,
    online: _Online = False,
    tensor_parallel_size: _Parallel = None,
    data_parallel_size: _Copies = None,
    expert_parallel: _Experts = False,
    trust_remote_code: Trust = False,
    yes: _Yes = False,
    overwrite: Overwrite = False,
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
        backend=backend,
        device_map=device_map,
        is_online=online or None,
        tensor_parallel_size=tensor_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=expert_parallel or None,
        trust_remote_code=trust_remote_code or None,
    )
    loaded = Verifier.load(verifier, settings)
    if not (out / MANIFEST_NAME).is_file() or overwrite:
        begin("extract", check_extract(tokens, loaded, out, config))
    with progress() as report:
        manifest = extract_states(
            tokens,
            loaded,
            out,
            config,
            cache_dir=settings.cache_dir,
            overwrite=overwrite,
            is_agreed=yes,
            progress=report,
        )
    show_stage(out, manifest, as_json)
