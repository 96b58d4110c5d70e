"""Which tensors vLLM expects of a drafter, and their shapes, computed from its config alone.

Source: vLLM 0.32, models/llama_eagle3.py, qwen3_eagle3.py and deepseek_eagle3.py. Names are plain
(`harness.drafter.keys`).
"""

from typing import NamedTuple

from harness.drafter.drafter import Drafter
from harness.drafter.fields import Fields

Shape = tuple[int, ...]

IGNORED_PARTS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Tensors of old exporters that vLLM drops."""


class Layout(NamedTuple):
    """Plain tensor name -> shape."""

    required: dict[str, Shape]
    optional: dict[str, Shape]
    """May be left out without a loss: what vLLM shares with the verifier, and `t2d`."""


def expected_layout(drafter: Drafter) -> Layout:
    """The tensors that this config asks for."""
    hidden, fc_columns = drafter.hidden_size, drafter.num_aux * drafter.target_hidden_size
    required: dict[str, Shape] = {"fc.weight": (hidden, fc_columns), "norm.weight": (hidden,)}
    for index in range(drafter.num_layers):
        required |= _layer(drafter, index)
    if drafter.norm_before_fc and drafter.format != "mla":
        required["input_norm.weight"] = (fc_columns,)
    if drafter.fc_norm:
        for index in range(drafter.num_aux):
            required[f"fc_norm.{index}.weight"] = (drafter.target_hidden_size,)
    head = {"lm_head.weight": (drafter.draft_vocab_size, hidden)}
    optional: dict[str, Shape] = {"embed_tokens.weight": (drafter.vocab_size, hidden)}
    optional["t2d"] = (drafter.vocab_size,)
    if drafter.draft_vocab_size == drafter.vocab_size:
        return Layout(required, optional | head)
    tables: dict[str, Shape] = {"d2t": (drafter.draft_vocab_size,)}
    return Layout(required | head | tables, optional)


def _layer(drafter: Drafter, index: int) -> dict[str, Shape]:
    prefix, hidden, inter = f"layers.{index}.", drafter.hidden_size, drafter.intermediate_size
    shapes: dict[str, Shape] = {
        f"{prefix}mlp.gate_proj.weight": (inter, hidden),
        f"{prefix}mlp.up_proj.weight": (inter, hidden),
        f"{prefix}mlp.down_proj.weight": (hidden, inter),
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }
    if index == 0:
        shapes[f"{prefix}hidden_norm.weight"] = (hidden,)
    attention = _mla(drafter, index) if drafter.format == "mla" else _attention(drafter, index)
    return shapes | {f"{prefix}self_attn.{name}": shape for name, shape in attention.items()}


def _attention(drafter: Drafter, index: int) -> dict[str, Shape]:
    columns = drafter.hidden_size * (2 if index == 0 else 1)
    queries, keys = (n * drafter.head_dim for n in (drafter.num_heads, drafter.num_kv_heads))
    shapes: dict[str, Shape] = {
        "q_proj.weight": (queries, columns),
        "k_proj.weight": (keys, columns),
        "v_proj.weight": (keys, columns),
        "o_proj.weight": (drafter.hidden_size, queries),
    }
    if drafter.attention_bias:
        shapes |= {"q_proj.bias": (queries,), "k_proj.bias": (keys,), "v_proj.bias": (keys,)}
    if drafter.model_type == "qwen3":
        shapes |= {"q_norm.weight": (drafter.head_dim,), "k_norm.weight": (drafter.head_dim,)}
    return shapes


def _mla(drafter: Drafter, index: int) -> dict[str, Shape]:
    """Multi-head latent attention: queries and keys come through low-rank projections."""
    config = Fields("config.json", drafter.config)
    columns = drafter.hidden_size * (2 if index == 0 else 1)
    rank = config.need_count("kv_lora_rank")
    nope, rope = config.need_count("qk_nope_head_dim"), config.need_count("qk_rope_head_dim")
    value, heads = config.need_count("v_head_dim"), drafter.num_heads
    shapes: dict[str, Shape] = {
        "kv_a_proj_with_mqa.weight": (rank + rope, columns),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (nope + value), rank),
        "o_proj.weight": (drafter.hidden_size, heads * value),
    }
    query_rank = config.count("q_lora_rank")
    if query_rank is None:
        return shapes | {"q_proj.weight": (heads * (nope + rope), columns)}
    return shapes | {
        "q_a_proj.weight": (query_rank, columns),
        "q_a_layernorm.weight": (query_rank,),
        "q_b_proj.weight": (heads * (nope + rope), query_rank),
    }
