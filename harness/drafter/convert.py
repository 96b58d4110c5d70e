"""Between flat and speculators format without loss: tensors byte by byte, every fact by table.

What the new format has no place for travels along under `converted_from` and comes back with the
way back. Missing or unexpected tensors are errors; nothing is ever filled in.
"""

from pathlib import Path
from typing import Any, Literal

from harness.config.load import Frozen
from harness.drafter.checks import require_sound
from harness.drafter.drafter import CONVERTED_KEY, Drafter, drafter_digest
from harness.drafter.keys import flat_name, map_keys
from harness.drafter.writer import Stored, write_drafter
from harness.errors import CheckError, ConfigError

Target = Literal["speculators", "flat"]

_ARCHITECTURES = {"llama": "LlamaForCausalLMEagle3", "qwen3": "Eagle3Qwen3ForCausalLM"}
_AUX_KEY = "eagle_aux_hidden_state_layer_ids"
_FLAGS = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm")
_SHARED = (*_FLAGS, _AUX_KEY, "draft_vocab_size", "target_hidden_size", "dtype")
"""Keys at the top of both formats."""
_TOP_ONLY = ("torch_dtype", "architectures", "auto_map", "transformers_version", CONVERTED_KEY)
_LEGACY_ROPE = ("rope_theta", "rope_scaling")
_DEFAULT_SPECULATIVE_TOKENS = 3
"""vLLM needs a number in the nested format; it can be overridden when serving."""
_NOT_COMPARED = {
    "path", "format", "config", "tensors", "given", "key_prefix", "architectures",
    "aux_layer_source",
}  # fmt: skip


class Converted(Frozen):
    """A conversion that was done and proved."""

    path: Path
    format: Target
    digest: str
    key_map: tuple[str, ...]
    """Renaming rules that were applied."""


def convert_drafter(
    path: Path, to: Target, out_dir: Path, *, verifier_name: str | None = None
) -> Converted:
    """Writes a drafter in another format, and reads it back to prove that nothing was lost.

    Args:
        path: The drafter. One that is in the target format already gets plain names.
        to: The format to write.
        out_dir: A new or empty folder.
        verifier_name: Put into a nested config that would name no verifier.

    Raises:
        CheckError: The drafter is not sound: a tensor is missing, unexpected or misshapen.
        ConfigError: A format that has no counterpart, or a folder that is not empty.
    """
    require_sound(path, None, purpose="finetune")
    drafter = Drafter.load(path)
    require_convertible(drafter)
    key_map = map_keys(drafter.tensors)
    if to == "flat":
        config = flat_config(drafter)
        names = {key: flat_name(name) for key, name in key_map.names.items()}
    else:
        config = speculators_config(drafter, verifier_name)
        names = key_map.names
    tensors = {names[key]: Stored(path, header) for key, header in drafter.tensors.items()}
    write_drafter(out_dir, config, tensors)
    _require_equal(drafter, Drafter.load(out_dir), verifier_name)
    rules = tuple(sorted({f"{_stem(k)} -> {_stem(n)}" for k, n in names.items() if k != n}))
    return Converted(path=out_dir, format=to, digest=drafter_digest(out_dir).root, key_map=rules)


def flat_config(drafter: Drafter) -> dict[str, Any]:
    """The config of the flat form, every fact explicit."""
    config = _layer_config(drafter) | _shared_config(drafter)
    config["architectures"] = [_ARCHITECTURES[drafter.model_type]]
    if drafter.format == "flat":
        kept = drafter.config.get(CONVERTED_KEY)
        config["architectures"] = list(drafter.architectures) or config["architectures"]
    else:
        kept = {"format": "speculators"}
        if not _came_from_flat(drafter):
            names = ("speculators_config", "speculators_version", "embed_requires_grad")
            kept |= {key: drafter.config[key] for key in names if key in drafter.config}
    return config | ({CONVERTED_KEY: kept} if kept else {})


def speculators_config(drafter: Drafter, verifier_name: str | None = None) -> dict[str, Any]:
    """The config of the nested form that speculators and vLLM read, every fact explicit."""
    kept = drafter.config if drafter.format == "speculators" else drafter.config.get(CONVERTED_KEY)
    kept = dict(kept or {})
    config = _shared_config(drafter)
    config |= {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": _layer_config(drafter),
        "tie_word_embeddings": False,
    }
    for key in ("speculators_version", "embed_requires_grad"):
        if key in kept:
            config[key] = kept[key]
    spec = kept.get("speculators_config")
    if spec is None:
        spec = _proposal(verifier_name)
        config[CONVERTED_KEY] = {"format": "flat"}
    elif CONVERTED_KEY in kept:
        config[CONVERTED_KEY] = kept[CONVERTED_KEY]
    config["speculators_config"] = spec
    return config


def _came_from_flat(drafter: Drafter) -> bool:
    """Whether the nested form's speculators_config was invented by a conversion."""
    kept = drafter.config.get(CONVERTED_KEY)
    return isinstance(kept, dict) and kept.get("format") == "flat"


def _proposal(verifier_name: str | None) -> dict[str, Any]:
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": _DEFAULT_SPECULATIVE_TOKENS,
                "accept_tolerance": 0.0,
                "verifier_accept_k": 1,
            }
        ],
        "verifier": {"name_or_path": verifier_name, "architectures": []},
    }


def _layer_config(drafter: Drafter) -> dict[str, Any]:
    """The decoder's keys: whatever stood there, with defaults spelled out and one rope."""
    if drafter.format == "speculators":
        layer = dict(drafter.config["transformer_layer_config"])
    else:
        layer = {k: v for k, v in drafter.config.items() if k not in (*_SHARED, *_TOP_ONLY)}
    for key in _LEGACY_ROPE:
        layer.pop(key, None)
    return layer | {
        "model_type": drafter.model_type,
        "rope_parameters": dict(drafter.rope_parameters),
        "hidden_act": drafter.hidden_act,
        "rms_norm_eps": drafter.rms_norm_eps,
        "max_position_embeddings": drafter.max_position_embeddings,
        "num_hidden_layers": drafter.num_layers,
        "num_key_value_heads": drafter.num_kv_heads,
        "tie_word_embeddings": drafter.tie_word_embeddings,
    }


def _shared_config(drafter: Drafter) -> dict[str, Any]:
    shared: dict[str, Any] = {name: getattr(drafter, name) for name in _FLAGS}
    shared["draft_vocab_size"] = drafter.draft_vocab_size
    if drafter.aux_layer_ids:
        shared[_AUX_KEY] = list(drafter.aux_layer_ids)
    if drafter.config.get("target_hidden_size") is not None:
        shared["target_hidden_size"] = drafter.target_hidden_size
    if drafter.dtype:
        shared["dtype"] = drafter.dtype
    return shared


def require_convertible(drafter: Drafter) -> None:
    """Raises a ConfigError for a drafter that has no speculators form."""
    kind = drafter.config.get("speculators_model_type", "eagle3")
    is_known = drafter.model_type in _ARCHITECTURES and kind == "eagle3"
    if drafter.format == "mla" or not is_known or drafter.is_quantised:
        raise ConfigError(
            f"{drafter.path}: expected an unquantised EAGLE-3 drafter with llama or qwen3 layers, "
            f"found {drafter.format}, {drafter.model_type}, {kind}",
            "such a drafter exists in one format only: serve it as it is",
        )


def _require_equal(before: Drafter, after: Drafter, verifier_name: str | None) -> None:
    """Every fact survives; a nested form may gain a verifier and a number of tokens, no more."""
    ignored = set(_NOT_COMPARED)
    if before.num_speculative_tokens is None or _came_from_flat(before):
        ignored.add("num_speculative_tokens")
        ignored |= {"verifier_name"} if verifier_name or before.format != after.format else set()
    old, new = before.model_dump(exclude=ignored), after.model_dump(exclude=ignored)
    lost = sorted(name for name in old if old[name] != new[name])
    if lost:
        raise CheckError(
            f"{after.path}: expected the facts of {before.path}, found other values for "
            f"{', '.join(lost)}",
            "keep the original, and report the drafter's config.json",
        )


def _stem(name: str) -> str:
    """The part of a name that a rule speaks of: `model.midlayer.`, `layers.0.`, `model.`."""
    for part in ("model.midlayer.", "model.layers.0.", "midlayer.", "layers.0.", "model."):
        if name.startswith(part):
            return part
    return ""
