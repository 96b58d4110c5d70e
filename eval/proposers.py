"""Competitors and ceilings: speculation without a trained drafter of ours.

`ngram` and `suffix` are vLLM's own. A ceiling accepts at a chosen rate whatever is proposed: what
speed a drafter would bring if it had that acceptance length, known before one is trained.
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import SpecError
from eval.files import write_atomic
from eval.spec import Proposer

_KNOWN: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
}
NEEDS = {"suffix": "arctic_inference"}
"""Modules that must be installed beside vLLM, by proposer."""

_CEILING_VOCAB = 8192
_HEAD_DIM = 64


def known_proposer(name: str) -> Proposer:
    """One of vLLM's own proposers by name; raises SpecError for another name."""
    if name not in _KNOWN:
        raise SpecError(
            f"expected one of {', '.join(_KNOWN)}, found {name!r}",
            "any other speculative config goes under `proposers` in the YAML",
        )
    return Proposer(name=name, speculative_config=_KNOWN[name])


def ceiling_proposers(
    drafter: Path, lengths: Sequence[float], *, is_cpu: bool
) -> tuple[Proposer, ...]:
    """Proposers whose step time is that of a drafter's size, whatever it learned.

    On a GPU one for each acceptance length, accepted regardless of the tokens. vLLM's CPU sampler
    cannot do that (0.32: "Synthetic acceptance not supported with CPU sampling"); there one
    untrained drafter measures the step, from which the speed at any length follows.

    Args:
        drafter: A folder of `write_untrained_drafter`, or any drafter: only its size matters.
        lengths: Acceptance lengths, bonus token included, from 1 on.
        is_cpu: Whether vLLM runs on a cpu.
    """
    config = {"method": "eagle3", "model": str(drafter)}
    if is_cpu:
        return (Proposer(name="untrained drafter", speculative_config=config),)
    synthetic = {**config, "rejection_sample_method": "synthetic"}
    return tuple(
        Proposer(
            name=f"ceiling AL {length:g}",
            speculative_config={**synthetic, "synthetic_acceptance_length": length},
            is_synthetic=True,
        )
        for length in lengths
    )


def write_untrained_drafter(verifier: Path, folder: Path) -> Path:
    """An EAGLE-3 drafter of random values in the usual size for a verifier; returns its folder.

    One layer as wide as the verifier, a draft vocabulary of 8,192, heads of 64: its own choices,
    nothing about the verifier is inferred from them.

    Raises:
        SpecError: The verifier's config lacks a size.
    """
    path = verifier / "config.json"
    try:
        document = json.loads(path.read_text())
        source = document.get("text_config", document)
        config = _config(source)
    except (OSError, ValueError, KeyError) as error:
        raise SpecError(
            f"{path}: no sizes for a drafter: {type(error).__name__}: {error}"
        ) from error
    write_atomic(folder / "config.json", json.dumps(config, indent=1))
    write_safetensors(folder / "model.safetensors", _tensors(config))
    return folder


def _config(source: dict[str, Any]) -> dict[str, Any]:
    hidden, layers = source["hidden_size"], source["num_hidden_layers"]
    heads = max(hidden // _HEAD_DIM, 1)
    kv_heads = next(n for n in range(min(heads, 8), 0, -1) if heads % n == 0)
    layer = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": source.get("intermediate_size") or 4 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _HEAD_DIM,
        "vocab_size": source["vocab_size"],
        "max_position_embeddings": source["max_position_embeddings"],
        "rms_norm_eps": source.get("rms_norm_eps", 1e-6),
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": min(_CEILING_VOCAB, source["vocab_size"]),
        "eagle_aux_hidden_state_layer_ids": [2, layers // 2, layers - 3],
        "dtype": "float32",
        "norm_before_residual": True,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "untrained", "architectures": []},
        },
    }


def _tensors(config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    layer = config["transformer_layer_config"]
    hidden, inner = layer["hidden_size"], layer["intermediate_size"]
    q_rows = layer["num_attention_heads"] * _HEAD_DIM
    kv_rows = layer["num_key_value_heads"] * _HEAD_DIM
    draft, vocab = config["draft_vocab_size"], layer["vocab_size"]
    rng = np.random.default_rng(0)

    def random(rows: int, columns: int) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = rng.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(0.02)

    ones = np.ones(hidden, dtype=np.float32)
    # Ids spread over the vocabulary; vLLM has no place for tables where all of them are drafted.
    ids = np.arange(draft, dtype=np.int64) * vocab // draft
    tables = {"d2t": ids - np.arange(draft), "t2d": np.isin(np.arange(vocab), ids)}
    return {
        "fc.weight": random(hidden, 3 * hidden),
        "layers.0.hidden_norm.weight": ones,
        "layers.0.input_layernorm.weight": ones,
        "layers.0.post_attention_layernorm.weight": ones,
        "layers.0.self_attn.q_proj.weight": random(q_rows, 2 * hidden),
        "layers.0.self_attn.k_proj.weight": random(kv_rows, 2 * hidden),
        "layers.0.self_attn.v_proj.weight": random(kv_rows, 2 * hidden),
        "layers.0.self_attn.o_proj.weight": random(hidden, q_rows),
        "layers.0.mlp.gate_proj.weight": random(inner, hidden),
        "layers.0.mlp.up_proj.weight": random(inner, hidden),
        "layers.0.mlp.down_proj.weight": random(hidden, inner),
        "norm.weight": ones,
        "lm_head.weight": random(draft, hidden),
        **(tables if draft < vocab else {}),
    }


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Writes float32, int64 and bool arrays as a safetensors file, whole or not at all."""
    names = {"float32": "F32", "int64": "I64", "bool": "BOOL"}
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": names[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    body = b"".join(np.ascontiguousarray(tensor).tobytes() for tensor in tensors.values())
    write_atomic(path, struct.pack("<Q", len(raw)) + raw + body)
