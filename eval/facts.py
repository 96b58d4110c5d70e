"""What a replay must be told of a drafter and its verifier; read from config.json by the caller."""

from pathlib import Path
from typing import Any, Literal

from eval.spec import Frozen


class DraftFacts(Frozen):
    """What the arithmetic depends on, as vLLM would take it from config.json."""

    kind: Literal["llama", "qwen3"] = "llama"
    hidden_size: int
    target_hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_aux: int
    aux_layer_ids: tuple[int, ...]
    vocab_size: int
    draft_vocab_size: int
    norm_before_residual: bool
    norm_before_fc: bool
    norm_output: bool
    fc_norm: bool
    rms_norm_eps: float
    hidden_act: str
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    windows: tuple[int | None, ...]
    """By layer: tokens that a query sees, itself included; None: all."""


class VerifierFacts(Frozen):
    """Where a verifier lies and how its text model is laid out."""

    path: Path
    digest: str
    num_layers: int
    embed_key: str
    """Tensor name of the input embedding, [V, D]."""
    head_key: str
    """Tensor name of the output head, [V, D]; the embedding's where the two are tied."""
    norm_key: str
    """Tensor name of the final norm's weight, [D]; an RMS norm that scales by this weight."""
    rms_norm_eps: float
    dtype: str | None = None
    """Of the model as config.json says, in torch's words; None: it does not say."""
