"""Small drafters by shape: facts with changes, and random tensors that fit them, by generator."""

import math
from typing import Any

import torch
from torch import Tensor

from eval.facts import DraftFacts

_MLP = 24


def build_facts(**changes: Any) -> DraftFacts:
    """A drafter of one layer, 16 columns and 4 of 7 tokens; windows are repeated over layers."""
    values: dict[str, Any] = {
        "hidden_size": 16,
        "num_layers": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 6,
        "aux_layer_ids": (1, 2, 3),
        "vocab_size": 7,
        "draft_vocab_size": 4,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "norm_output": False,
        "fc_norm": False,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 128,
        "windows": (None,),
    }
    values |= changes
    values["windows"] = (values["windows"] * values["num_layers"])[: values["num_layers"]]
    sizes = {
        "target_hidden_size": values["hidden_size"],
        "num_aux": len(values["aux_layer_ids"]),
    }
    return DraftFacts(**sizes, **values)


def random_tensors(
    facts: DraftFacts, random: torch.Generator, *, scale: float = 1.0, gain_spread: float = 0.3
) -> dict[str, Tensor]:
    """Every tensor that a drafter of these facts may have.

    Projections keep the size of what goes through them, `scale` times; norms are about 1.
    Draft ids stand for tokens evenly over the vocabulary, the first one for token 0.
    """
    hidden, columns = facts.hidden_size, facts.num_aux * facts.target_hidden_size

    def weights(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=random) / math.sqrt(shape[-1])

    def gains(size: int) -> Tensor:
        return 1 + gain_spread * torch.randn(size, generator=random)

    found = {
        "fc.weight": weights(hidden, columns),
        "norm.weight": gains(hidden),
        "lm_head.weight": weights(facts.draft_vocab_size, hidden),
        "input_norm.weight": gains(columns),
        **{f"fc_norm.{i}.weight": gains(facts.target_hidden_size) for i in range(facts.num_aux)},
    }
    heads = {"q": facts.num_heads, "k": facts.num_kv_heads, "v": facts.num_kv_heads}
    for layer in range(facts.num_layers):
        prefix, width = f"layers.{layer}.", hidden * (2 if layer == 0 else 1)
        attention = f"{prefix}self_attn."
        for letter, num_heads in heads.items():
            rows = num_heads * facts.head_dim
            found[f"{attention}{letter}_proj.weight"] = weights(rows, width)
            found[f"{attention}{letter}_norm.weight"] = gains(facts.head_dim)
        found[f"{attention}o_proj.weight"] = weights(hidden, facts.num_heads * facts.head_dim)
        found[f"{prefix}mlp.gate_proj.weight"] = weights(_MLP, hidden)
        found[f"{prefix}mlp.up_proj.weight"] = weights(_MLP, hidden)
        found[f"{prefix}mlp.down_proj.weight"] = weights(hidden, _MLP)
        for norm in ("input_layernorm", "post_attention_layernorm", "hidden_norm"):
            found[f"{prefix}{norm}.weight"] = gains(hidden)
    if facts.draft_vocab_size < facts.vocab_size:
        ids = torch.arange(facts.draft_vocab_size)
        found["d2t"] = ids * facts.vocab_size // facts.draft_vocab_size - ids
    return found
