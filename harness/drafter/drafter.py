"""The drafter: the small EAGLE-3 model that proposes tokens, as facts from config and headers.

No weights are read. What vLLM would assume for an absent key is what the fact says; `given` tells
which keys the config really has. Source of every default: vLLM 0.32, llama_eagle3.py and
transformers_utils/configs/speculators/algos.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from harness.config.load import Frozen
from harness.digests import FolderDigest, digest_files
from harness.drafter.fields import Fields, parse_rope
from harness.drafter.keys import find_layer_prefix, plain_name
from harness.drafter.tensors import (
    INDEX_NAME,
    TensorHeader,
    UnreadableError,
    read_folder_headers,
    read_json_object,
)
from harness.errors import ConfigError

DrafterFormat = Literal["speculators", "flat", "mla"]
DEFAULT_NUM_AUX = 3
QWEN3_HEAD_DIM = 128
"""What transformers' Qwen3 config takes where a flat drafter gives no head_dim."""
_QWEN3_ARCHITECTURES = ("Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM", "Qwen3ForCausalLM")
_DEFAULT_EPS, _DEFAULT_THETA, _DEFAULT_POSITIONS = 1e-6, 10000.0, 2048
"""Source: transformers 5.19, models/llama/configuration_llama.py."""
_MOST_LAYERS = 1000
"""Of a drafter, or handed to it: an absurd number must not become an absurd list."""
CONVERTED_KEY = "converted_from"
"""Where a conversion keeps what the new format has no place for (`harness.drafter.convert`)."""
_TRAINED_TYPES = ("eagle3", "peagle")


class Drafter(Frozen):
    """Facts of a drafter. Sizes are in elements unless the name says bytes."""

    path: Path
    format: DrafterFormat
    model_type: str
    """Kind of its layers; in a flat folder vLLM goes by the architecture."""
    architectures: tuple[str, ...]
    config: dict[str, Any]
    tensors: dict[str, TensorHeader]
    given: frozenset[str]
    """Optional keys that the config states rather than leaves to a default."""
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim_configured: int | None
    head_dim_tensors: int | None
    """q_proj rows / heads; None where q_proj is missing or does not divide."""
    vocab_size: int
    draft_vocab_size: int
    aux_layer_ids: tuple[int, ...] | None
    aux_layer_source: Literal["config", "eagle_config"] | None
    aux_convention: Literal["vllm"] = "vllm"
    """Id i names the input of verifier layer i, which is the output of layer i - 1."""
    num_aux: int
    """Aux hidden states that vLLM sizes `fc` for."""
    norm_before_residual: bool
    norm_before_fc: bool
    norm_output: bool
    fc_norm: bool
    attention_bias: bool
    is_quantised: bool
    hidden_act: str
    rms_norm_eps: float
    logit_scale: float
    tie_word_embeddings: bool
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    """Window of the sliding layers in tokens; None where every layer attends to everything."""
    dtype: str | None
    dtypes: tuple[str, ...]
    num_parameters: int
    """Trained values: tables (d2t, t2d) are not counted, a copy of the embedding is."""
    num_bytes: int
    verifier_name: str | None
    verifier_architectures: tuple[str, ...]
    num_speculative_tokens: int | None
    has_embed: bool
    has_own_lm_head: bool
    key_prefix: str
    """How the first layer's tensors begin: `layers.0.`, `midlayer.`, perhaps behind `model.`."""

    @classmethod
    def load(cls, path: Path) -> "Drafter":
        """Reads a drafter's facts, in time that does not depend on its size.

        Raises:
            ConfigError: The folder does not exist.
            CheckError: The folder cannot be read as an EAGLE-3 drafter; says which file and why.
        """
        if not path.is_dir():
            raise ConfigError(f"expected a drafter's folder, found none: {path}", "check the path")
        document = read_json_object(path / "config.json")
        return _read(path, document, read_folder_headers(path))

    @property
    def head_dim(self) -> int:
        """What vLLM will use: as configured, else hidden_size / heads, but for flat Qwen3."""
        is_flat_qwen3 = self.format == "flat" and self.config.get("model_type") == "qwen3"
        default = QWEN3_HEAD_DIM if is_flat_qwen3 else self.hidden_size // self.num_heads
        return self.head_dim_configured or default

    def find(self, name: str) -> TensorHeader | None:
        """A tensor by its plain name (`layers.0.mlp.up_proj.weight`), however it is stored."""
        key = self.stored_names.get(name)
        return self.tensors[key] if key else None

    @property
    def stored_names(self) -> dict[str, str]:
        """Plain name -> name in the file."""
        return {plain_name(key): key for key in self.tensors}


def drafter_files(path: Path) -> tuple[str, ...]:
    """Names of the files that make a drafter: config, weights and their index."""
    names = {p.name for p in path.glob("*.safetensors")}
    names |= {n for n in ("config.json", INDEX_NAME) if (path / n).is_file()}
    return tuple(sorted(names))


def drafter_digest(path: Path, on_bytes: Callable[[int], None] | None = None) -> FolderDigest:
    """SHA-256 of config and weights; its root is THE digest of a drafter everywhere.

    Args:
        path: The drafter's folder.
        on_bytes: Told the size of each piece as it is read.
    """
    names = drafter_files(path)
    if "config.json" not in names:
        raise ConfigError(f"expected a drafter's folder with config.json, found none: {path}")
    return digest_files(path, names, on_bytes)


def _read(path: Path, document: dict[str, Any], tensors: dict[str, TensorHeader]) -> Drafter:
    top = Fields("config.json", document)
    form = _detect_format(top)
    layer = top
    if form == "speculators":
        nested = top.nested("transformer_layer_config")
        if nested is None:
            where, fix = "config.json: transformer_layer_config", "re-save the drafter"
            raise UnreadableError(where, "an object", "nothing", fix)
        layer = nested
    kind = _layer_kind(top, layer, form)
    facts = _sizes(top, layer) | _flags(top, layer, form) | _aux(top, layer, form, kind)
    facts |= _stored(tensors, facts["num_heads"])
    return Drafter(
        path=path,
        format=form,
        config=document,
        tensors=tensors,
        architectures=tuple(top.texts("architectures")),
        model_type=kind,
        dtype=top.dtype() or layer.dtype(),
        **_named_verifier(top),
        **facts,
    )


def _detect_format(top: Fields) -> DrafterFormat:
    kind = top.text("speculators_model_type")
    if kind or top.has("speculators_config"):
        if kind not in _TRAINED_TYPES:
            raise UnreadableError(
                "config.json: speculators_model_type", f"one of {', '.join(_TRAINED_TYPES)}",
                repr(kind), "only EAGLE-3 drafters are supported",
            )  # fmt: skip
        return "speculators"
    architectures = top.texts("architectures")
    is_mla = any("Deepseek" in name for name in architectures) or top.has("kv_lora_rank")
    return "mla" if is_mla else "flat"


def _layer_kind(top: Fields, layer: Fields, form: DrafterFormat) -> str:
    kind = layer.text("model_type") or "llama"
    names = top.texts("architectures")
    if form != "flat" or not names:
        return kind
    if names[0] in _QWEN3_ARCHITECTURES:
        return "qwen3"
    return "llama" if kind == "qwen3" else kind


def _sizes(top: Fields, layer: Fields) -> dict[str, Any]:
    hidden_size = layer.need_count("hidden_size")
    vocab_size = layer.need_count("vocab_size")
    heads = layer.need_count("num_attention_heads")
    return {
        "hidden_size": hidden_size,
        "target_hidden_size": top.count("target_hidden_size") or hidden_size,
        "intermediate_size": layer.need_count("intermediate_size"),
        "num_layers": layer.count("num_hidden_layers", _MOST_LAYERS) or 1,
        "num_heads": heads,
        "num_kv_heads": layer.count("num_key_value_heads") or heads,
        "head_dim_configured": layer.count("head_dim"),
        "vocab_size": vocab_size,
        "draft_vocab_size": top.count("draft_vocab_size") or vocab_size,
        "max_position_embeddings": layer.count("max_position_embeddings") or _DEFAULT_POSITIONS,
    }


def _flags(top: Fields, layer: Fields, form: DrafterFormat) -> dict[str, Any]:
    eagle = (top.nested("eagle_config") if form != "speculators" else None) or Fields("", {})
    before_residual = top.flag("norm_before_residual")
    before_fc = eagle.flag("norm_before_fc")
    layer_types = tuple(layer.texts("layer_types"))
    given = {k for k in ("norm_before_residual", "norm_before_fc", "norm_output") if top.has(k)}
    rope = parse_rope(layer)
    given |= {"rope_parameters"} if "rope_theta" in rope else set()
    is_eagle3 = top.text("speculators_model_type") == "eagle3"
    return {
        "given": frozenset(given),
        "norm_before_residual": is_eagle3 if before_residual is None else before_residual,
        "norm_before_fc": (top.flag("norm_before_fc") or False) if before_fc is None else before_fc,
        "norm_output": top.flag("norm_output") or False,
        "fc_norm": top.flag("fc_norm") or False,
        "attention_bias": layer.flag("attention_bias") or False,
        "hidden_act": layer.text("hidden_act") or "silu",
        "rms_norm_eps": layer.number("rms_norm_eps") or _DEFAULT_EPS,
        "logit_scale": layer.number("logit_scale") or 1.0,
        "is_quantised": top.has("quantization_config") or top.has("compression_config"),
        "tie_word_embeddings": layer.flag("tie_word_embeddings") or False,
        "rope_parameters": {"rope_theta": _DEFAULT_THETA, "rope_type": "default"} | rope,
        "layer_types": layer_types,
        "sliding_window": layer.count("sliding_window")
        if "sliding_attention" in layer_types
        else None,
    }


def _aux(top: Fields, layer: Fields, form: DrafterFormat, kind: str) -> dict[str, Any]:
    """Aux layer ids, and how many states vLLM sizes fc for: Qwen3 alone counts top-level ids."""
    ids = top.counts("eagle_aux_hidden_state_layer_ids")
    eagle = top.nested("eagle_config") if form != "speculators" else None
    inner = eagle.counts("eagle_aux_hidden_state_layer_ids") if eagle else None
    counted = inner
    num_aux = layer.count("num_aux_hidden_states", _MOST_LAYERS)
    if kind == "qwen3":
        counted = ids or inner
        num_aux = layer.count("num_aux_layers", _MOST_LAYERS) or num_aux
    num_aux = num_aux or (len(counted) if counted else DEFAULT_NUM_AUX)
    source = "config" if ids else "eagle_config" if inner else None
    return {"aux_layer_ids": ids or inner, "aux_layer_source": source, "num_aux": num_aux}


def _stored(tensors: dict[str, TensorHeader], num_heads: int) -> dict[str, Any]:
    plain = {plain_name(key): header for key, header in tensors.items()}
    query = plain.get("layers.0.self_attn.q_proj.weight")
    rows = query.shape[0] if query and query.shape else 0
    head_dim = rows // num_heads if rows and not rows % num_heads else None
    tables = {"d2t", "t2d"}
    weights = {name: header for name, header in plain.items() if name not in tables}
    return {
        "head_dim_tensors": head_dim,
        "dtypes": tuple(sorted({header.dtype for header in weights.values()})),
        "num_parameters": sum(header.num_elements for header in weights.values()),
        "num_bytes": sum(header.num_bytes for header in tensors.values()),
        "has_embed": "embed_tokens.weight" in plain,
        "has_own_lm_head": "lm_head.weight" in plain,
        "key_prefix": find_layer_prefix(tensors),
    }


def _named_verifier(top: Fields) -> dict[str, Any]:
    spec = _speculators_config(top)
    verifier = (spec.nested("verifier") if spec else None) or Fields("", {})
    return {
        "verifier_name": verifier.text("name_or_path"),
        "verifier_architectures": tuple(verifier.texts("architectures")),
        "num_speculative_tokens": _speculative_tokens(spec),
    }


def _speculators_config(top: Fields) -> Fields | None:
    """The block of a nested config, or what a conversion to flat kept of it."""
    kept = top.nested(CONVERTED_KEY)
    return top.nested("speculators_config") or (kept.nested("speculators_config") if kept else None)


def _speculative_tokens(spec: Fields | None) -> int | None:
    methods = spec.document.get("proposal_methods") if spec else None
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
        return None
    return Fields("config.json: proposal_methods[0]", methods[0]).count("speculative_tokens")
