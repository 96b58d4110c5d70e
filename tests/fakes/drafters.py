"""Tiny verifiers and drafters in every config shape, healthy until a test breaks one.

Weights are Laplace noise with a scale of its own, so that nothing looks freshly initialised; the
output head holds the verifier's rows, as speculators' does, unless it is asked to be apart.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.drafter.drafter import Drafter
from harness.drafter.keys import flat_name
from harness.drafter.layout import expected_layout
from harness.drafter.tensors import read_folder_headers
from harness.drafter.values import from_float32, read_tensor
from harness.drafter.verifier import Verifier
from harness.drafter.writer import write_drafter
from harness.settings import Settings

VERIFIER_KINDS = ("llama", "qwen3", "kimi", "tied_vlm")
NUM_LAYERS, VOCAB, DRAFT_VOCAB, HEADS, KV_HEADS = 30, 512, 128, 4, 2
AUX = [2, 15, 27]
MLA = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3",
    "kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}  # fmt: skip
Tensors = dict[str, Any]


def settings_for(root: Path) -> Settings:
    return Settings(root_dir=root, tracking_uri="sqlite:///x", cache_dir=root / "cache")


def noise(seed: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(list(seed.encode()))
    return rng.laplace(scale=0.035, size=shape).astype(np.float32)


def build_verifier(folder: Path, kind: str = "llama", dtype: str = "float32") -> Verifier:
    """Writes and loads a verifier: config, tokenizer file, embedding and head, no layers."""
    hidden = 56 if kind == "kimi" else 64
    text = {
        "hidden_size": hidden, "num_hidden_layers": NUM_LAYERS, "vocab_size": VOCAB,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": 96,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "hidden_act": "silu",
        "rope_theta": 50000.0, "model_type": "llama", "dtype": dtype,
    }  # fmt: skip
    prefix, config = "model.", text | {"architectures": ["LlamaForCausalLM"]}
    if kind == "qwen3":
        config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
    if kind == "kimi":
        text = text | {"model_type": "deepseek_v3", "qk_rope_head_dim": 8, "v_head_dim": 16}
        config = {
            "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
            "auto_map": {"AutoConfig": "configuration_kimi.KimiConfig"}, "text_config": text,
        }  # fmt: skip
        prefix = "language_model.model."
    if kind == "tied_vlm":
        config = {
            "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
            "tie_word_embeddings": True, "vision_config": {"hidden_size": 8},
            "text_config": text | {"model_type": "qwen3_vl_text", "tie_word_embeddings": True},
        }  # fmt: skip
        prefix = "model.language_model."
    tensors: Tensors = {
        f"{prefix}embed_tokens.weight": noise("embed", VOCAB, hidden),
        f"{prefix}norm.weight": np.ones(hidden, np.float32),
    }
    if kind == "tied_vlm":
        tensors["model.visual.embed_tokens.weight"] = noise("vision", 8, 8)
    else:
        head = "language_model.lm_head.weight" if kind == "kimi" else "lm_head.weight"
        tensors[head] = noise("head", VOCAB, hidden)
    write_drafter(folder, config, tensors)
    (folder / "tokenizer.json").write_text("{}")
    if kind == "kimi":
        shard(folder)
    return Verifier.load(str(folder), settings_for(folder.parent))


def build_drafter(
    folder: Path,
    verifier: Verifier,
    form: str = "nested",
    *,
    seed: str = "a",
    dtype: str = "float32",
    has_t2d: bool = True,
    has_embed: bool = False,
    is_sharded: bool = False,
    is_head_apart: bool = False,
    model_type: str = "llama",
    num_layers: int = 1,
    num_aux: int = 3,
) -> Path:
    """Writes a drafter that vLLM would serve as it was trained; `form`: nested, flat or mla."""
    head_dim = verifier.head_dim or 16
    layer = {
        "model_type": model_type, "hidden_size": verifier.hidden_size, "intermediate_size": 96,
        "num_hidden_layers": num_layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim, "vocab_size": VOCAB, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "attention_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip
    top = {
        "draft_vocab_size": DRAFT_VOCAB, "norm_before_residual": True, "norm_before_fc": True,
        "norm_output": False, "fc_norm": False, "dtype": dtype,
        "eagle_aux_hidden_state_layer_ids": [*AUX, 28, 29][:num_aux],
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 50000.0}
    if form == "mla":
        config = layer | top | MLA | {"rope_theta": 50000.0, "norm_before_fc": False}
    elif form == "flat":
        legacy = {"rope_theta": 50000.0, "rope_scaling": None}
        name = "Eagle3Qwen3ForCausalLM" if model_type == "qwen3" else "LlamaForCausalLMEagle3"
        config = layer | legacy | top | {"architectures": [name]}
    else:
        config = top | {
            "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
            "transformer_layer_config": layer | {"rope_parameters": rope},
            "speculators_config": _proposal(verifier),
        }  # fmt: skip
    write_drafter(folder, config, {"x": np.zeros(1, np.float32)})
    tensors = _healthy_tensors(folder, verifier, seed, is_head_apart=is_head_apart)
    if not has_t2d:
        del tensors["t2d"]
    if not has_embed:
        del tensors["embed_tokens.weight"]
    if dtype == "bfloat16":
        tensors = {
            k: from_float32(v, "BF16") if v.dtype == np.float32 else v for k, v in tensors.items()
        }
    if form == "flat":
        tensors = {flat_name(name): value for name, value in tensors.items()}
    replace(folder, config, tensors)
    if is_sharded:
        shard(folder)
    return folder


def edit_config(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Applies a change to config.json in place."""
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def decoder(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that holds the layer sizes, in either form."""
    nested: dict[str, Any] = config.get("transformer_layer_config", config)
    return nested


def edit_tensors(path: Path, change: Callable[[Tensors], object]) -> None:
    """Loads every tensor by its plain name, applies a change, writes them as they were spelled."""
    headers = read_folder_headers(path)
    is_flat = any("midlayer." in key for key in headers)
    tensors = {
        key.replace("midlayer.", "layers.0."): read_tensor(path, header)
        for key, header in headers.items()
    }
    change(tensors)
    config = json.loads((path / "config.json").read_text())
    replace(path, config, {flat_name(k) if is_flat else k: v for k, v in tensors.items()})


def replace(path: Path, config: dict[str, Any], tensors: Tensors) -> None:
    for file in path.iterdir():
        file.unlink()
    write_drafter(path, config, tensors)


def shard(path: Path) -> None:
    """Splits model.safetensors in two, with an index."""
    headers = read_folder_headers(path)
    tensors = {key: read_tensor(path, header) for key, header in headers.items()}
    weight_map = {}
    for number, names in enumerate((list(tensors)[::2], list(tensors)[1::2]), start=1):
        name = f"model-0000{number}-of-00002.safetensors"
        write_drafter(path / "part", {}, {key: tensors[key] for key in names})
        (path / "part" / "model.safetensors").rename(path / name)
        (path / "part" / "config.json").unlink()
        (path / "part").rmdir()
        weight_map |= dict.fromkeys(names, name)
    (path / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _healthy_tensors(
    folder: Path, verifier: Verifier, seed: str, *, is_head_apart: bool
) -> Tensors:
    config = json.loads((folder / "config.json").read_text())
    bare = folder.parent / f".{folder.name}-bare"
    write_drafter(bare, config, {"layers.0.x": np.zeros(1, np.float32)})
    layout = expected_layout(Drafter.load(bare))
    tensors: Tensors = {}
    for name, shape in (layout.required | layout.optional).items():
        tensors[name] = noise(seed + name, *shape)
        if len(shape) == 1:
            tensors[name] = 1 + tensors[name]
    rng = np.random.default_rng(3)
    targets = np.sort(rng.choice(VOCAB, DRAFT_VOCAB, replace=False)).astype(np.int64)
    tensors["d2t"] = targets - np.arange(DRAFT_VOCAB)
    mask = np.zeros(VOCAB, dtype=bool)
    mask[targets] = True
    tensors["t2d"] = mask
    assert verifier.embed_key
    assert verifier.lm_head_key
    head = verifier.header(verifier.lm_head_key)
    embedding = verifier.header(verifier.embed_key)
    if not is_head_apart:
        tensors["lm_head.weight"] = read_tensor(verifier.path, head)[targets]
    tensors["embed_tokens.weight"] = read_tensor(verifier.path, embedding).copy()
    for file in bare.iterdir():
        file.unlink()
    bare.rmdir()
    return tensors


def _proposal(verifier: Verifier) -> dict[str, Any]:
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {
            "name_or_path": str(verifier.path),
            "architectures": list(verifier.architectures),
        },
    }
