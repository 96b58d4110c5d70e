"""A drafter and a verifier of a few kilobytes, in the real formats: sound for every check."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP = 16, 2, 1, 8, 32
VOCAB, DRAFT_VOCAB, NUM_LAYERS = 64, 16, 8
AUX_LAYER_IDS = (2, 4, 5)

_LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_tiny_verifier(folder: Path, seed: int = 0) -> Path:
    """A Llama of 8 layers with embedding and head, a config and a tokenizer file."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **_LAYER,
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": NUM_LAYERS,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    random = np.random.default_rng(seed)
    save_file(
        {
            "model.embed_tokens.weight": _weights(random, VOCAB, HIDDEN),
            "lm_head.weight": _weights(random, VOCAB, HIDDEN),
        },
        folder / "model.safetensors",
    )
    return folder


def write_tiny_drafter(folder: Path, seed: int = 1, **changes: Any) -> Path:
    """An EAGLE-3 drafter in speculators' format; `changes` go into its config's top level."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": DRAFT_VOCAB,
        "dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": list(AUX_LAYER_IDS),
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": True,
        "norm_before_residual": True,
        "norm_output": True,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "tiny"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {**_LAYER, "num_hidden_layers": 1},
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_drafter_tensors(np.random.default_rng(seed)), folder / "model.safetensors")
    return folder


def _drafter_tensors(random: np.random.Generator) -> dict[str, np.ndarray]:
    q_rows, kv_rows = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    kept = np.sort(random.choice(VOCAB, DRAFT_VOCAB, replace=False))
    t2d = np.zeros(VOCAB, dtype=bool)
    t2d[kept] = True
    return {
        "d2t": kept.astype(np.int64) - np.arange(DRAFT_VOCAB),
        "t2d": t2d,
        "fc.weight": _weights(random, HIDDEN, 3 * HIDDEN),
        "input_norm.weight": np.ones(3 * HIDDEN, dtype=np.float32),
        "layers.0.hidden_norm.weight": np.ones(HIDDEN, dtype=np.float32),
        "layers.0.input_layernorm.weight": np.ones(HIDDEN, dtype=np.float32),
        "layers.0.mlp.down_proj.weight": _weights(random, HIDDEN, MLP),
        "layers.0.mlp.gate_proj.weight": _weights(random, MLP, HIDDEN),
        "layers.0.mlp.up_proj.weight": _weights(random, MLP, HIDDEN),
        "layers.0.post_attention_layernorm.weight": np.ones(HIDDEN, dtype=np.float32),
        "layers.0.self_attn.k_proj.weight": _weights(random, kv_rows, 2 * HIDDEN),
        "layers.0.self_attn.o_proj.weight": _weights(random, HIDDEN, q_rows),
        "layers.0.self_attn.q_proj.weight": _weights(random, q_rows, 2 * HIDDEN),
        "layers.0.self_attn.v_proj.weight": _weights(random, kv_rows, 2 * HIDDEN),
        "lm_head.weight": _weights(random, DRAFT_VOCAB, HIDDEN),
        "norm.weight": np.ones(HIDDEN, dtype=np.float32),
    }


def _weights(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.normal(0.0, 0.02, shape).astype(np.float32)
