"""What an extraction is asked to do, and what is refused before it starts."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from harness.config.load import Frozen
from harness.corpus.batches import Budget
from harness.corpus.manifest import Manifest, Plan
from harness.corpus.storage import StateDtype
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

ORIGIN_BUDGETS = "batch_tokens"
"""Among a manifest's origins: the budgets of the passes, which repairs go by."""


class ExtractConfig(Frozen):
    """What is captured and how it is stored; `batch_tokens` sets the pace alone."""

    aux_layer_ids: tuple[int, ...] | None = None
    """Layers whose inputs the drafter sees; None: the verifier's default (2, n//2, n-3)."""
    dtype: StateDtype = "float32"
    """Of the stored states and of the arithmetic; fp8 is computed in bfloat16, on a CPU float32."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens per forward pass, padding included; a longer row is a batch of its own. None: an
    estimate by the free memory. Halved, and gone on, where memory ends."""
    backend: Literal["transformers", "vllm"] = "transformers"
    device_map: str | None = None
    """transformers: how a verifier is spread over GPUs, `auto` for all; None: it is on one."""
    is_online: bool = False
    """Only the last rows are stored, which trainings validate on; the others are made by a server
    during the training (`harness data serve`)."""
    val_ratio: float = Field(default=0.1, gt=0, lt=1)
    """Of the rows, the last ones, that an online corpus stores: the trainings' `val_ratio`."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """vllm: GPUs of one verifier."""
    data_parallel_size: int = Field(default=1, ge=1)
    """vllm: verifiers behind one port, each on GPUs of its own."""
    enable_expert_parallel: bool = False
    """vllm: whole experts of an MoE on each GPU, not slices of all."""
    max_model_len: int | None = Field(default=None, ge=16)
    """vllm: tokens of a row at most, and one more; None: by the longest row."""
    trust_remote_code: bool = False
    """vllm: run code of the verifier's folder, which some tokenizers need."""


def build_plan(source: Manifest, verifier: Verifier, config: ExtractConfig) -> Plan:
    """The plan of an extraction from prepared rows.

    Raises:
        ConfigError: Layers that the verifier lacks.
    """
    settings: dict[str, Any] = {
        "aux_layer_ids": list(require_layers(config.aux_layer_ids, verifier)),
        "dtype": config.dtype,
    }
    if config.backend != "transformers":  # whose plans are older than the choice
        settings["backend"] = config.backend
    if config.is_online:
        settings["first_row"] = source.counts["rows"] - num_stored_rows(source, config)
    inputs = {"tokens": source.digest, "verifier": source.inputs["verifier"]}
    return Plan(stage="extract", inputs=inputs, config=settings)


def num_stored_rows(source: Manifest, config: ExtractConfig) -> int:
    """Rows, the last ones, whose states are kept on disk."""
    num_rows = source.counts["rows"]
    return num_rows - int(num_rows * (1 - config.val_ratio)) if config.is_online else num_rows


def require_layers(asked: tuple[int, ...] | None, verifier: Verifier) -> tuple[int, ...]:
    """The layers to capture, in ascending order.

    Raises:
        ConfigError: They are not ascending, or the verifier has fewer.
    """
    layer_ids = asked or verifier.default_aux_layer_ids
    is_sound = list(layer_ids) == sorted(set(layer_ids)) and layer_ids[0] >= 0
    if not is_sound or layer_ids[-1] >= verifier.num_layers:
        raise ConfigError(
            f"aux_layer_ids: expected increasing layers from 0 to {verifier.num_layers - 1} of "
            f"{verifier.reference}, found {', '.join(map(str, layer_ids))}",
            "name others with --aux-layers; the last state is always added"
            + (f"; left out they are {verifier.default_aux_layer_ids}" if asked else ""),
        )
    return layer_ids


def require_rows(rows: Sequence[Sequence[int]], verifier: Verifier, config: ExtractConfig) -> None:
    """Refuses rows that the verifier cannot read, before it is loaded.

    Raises:
        CheckError: Names the first row with a token that the verifier has no embedding for, or with
            more tokens than its context; vLLM needs room for one more.
    """
    context = verifier.max_position_embeddings
    most = context - (config.backend == "vllm") if context else None
    for number, ids in enumerate(rows):
        if most is not None and len(ids) > most:
            raise CheckError(
                f"row {number}: expected at most {most} tokens in the context of "
                f"{verifier.reference} with {config.backend}, found {len(ids)}",
                f"prepare the conversations with --seq-length {most} or less",
            )
        if not ids or min(ids) < 0 or max(ids) >= verifier.vocab_size:
            found = f"{min(ids)} to {max(ids)}" if ids else "no token"
            raise CheckError(
                f"row {number}: expected token ids from 0 to {verifier.vocab_size - 1} of "
                f"{verifier.reference}, found {found}",
                "prepare the conversations with this verifier",
            )


def spell_budgets(budgets: Sequence[Budget]) -> str:
    """Budgets as a manifest keeps them."""
    return json.dumps([[budget.first_batch, budget.tokens] for budget in budgets])


def read_budgets(manifest: Manifest) -> list[Budget]:
    """The budgets that a finished corpus was made with; none of one from before they were kept."""
    pairs = json.loads(manifest.origins.get(ORIGIN_BUDGETS, "[]"))
    return [Budget(first_batch=first, tokens=tokens) for first, tokens in pairs]
