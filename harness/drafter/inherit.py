"""What a child takes from its parent: sizes from the tensors, switches unless set otherwise."""

from typing import Any

from harness.config.train import TrainConfig
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError

_SIZES = ("num_heads", "num_kv_heads", "num_layers", "intermediate_size")
_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "rope_parameters")


def require_agreement(parent: Drafter, verifier: Verifier, config: TrainConfig) -> None:
    """Refuses a configuration that contradicts the parent's tensors.

    Raises:
        ConfigError: Names the key and both values.
    """
    head_dim = parent.head_dim_tensors
    if head_dim is None or config.head_dim not in (None, head_dim):
        raise _contradiction("head_dim", config.head_dim, head_dim, parent)
    for name in _SIZES:
        if getattr(config, name) not in (None, getattr(parent, name)):
            raise _contradiction(name, getattr(config, name), getattr(parent, name), parent)
    asked = config.draft_vocab_size
    if config.vocab_policy == "keep" and asked not in (None, parent.draft_vocab_size):
        raise _contradiction("draft_vocab_size", asked, parent.draft_vocab_size, parent)
    if parent.hidden_size != parent.target_hidden_size:
        raise ConfigError(
            f"{parent.path}: expected a drafter as wide as its verifier ({verifier.hidden_size}), "
            f"found hidden_size {parent.hidden_size}",
            "speculators cannot train a drafter of another width",
        )
    if config.aux_layer_ids and len(config.aux_layer_ids) != parent.num_aux:
        found = f"{parent.num_aux} layers ({parent.aux_layer_ids})"
        raise _contradiction("aux_layer_ids", config.aux_layer_ids, found, parent)


def inherit(parent: Drafter, config: TrainConfig) -> tuple[Drafter, tuple[str, ...]]:
    """The child's facts, and a warning for each that changes what the parent's weights compute."""
    asked: dict[str, Any] = {name: getattr(config, name) for name in _SWITCHES}
    asked["aux_layer_ids"] = config.aux_layer_ids
    changes = {k: v for k, v in asked.items() if v is not None and v != getattr(parent, k)}
    changes |= _window(parent, config)
    warnings = [
        f"{name}: the parent was trained with {getattr(parent, name)}, this training uses {value}"
        for name, value in changes.items()
        if name != "layer_types" and (name, getattr(parent, name)) != ("aux_layer_ids", None)
    ]
    if "rope_parameters" not in parent.given and config.rope_parameters is None:
        warnings.append(
            f"rope_parameters: the parent states none; taken for {parent.rope_parameters}, "
            "as vLLM does"
        )
    return parent.model_copy(update=changes), tuple(warnings)


def _window(parent: Drafter, config: TrainConfig) -> dict[str, Any]:
    if config.sliding_window is None:
        return {}
    window = None if config.sliding_window == "full" else config.sliding_window
    if window == parent.sliding_window:
        return {}
    kind = "full_attention" if window is None else "sliding_attention"
    return {"sliding_window": window, "layer_types": (kind,) * parent.num_layers}


def _contradiction(name: str, asked: object, found: object, parent: Drafter) -> ConfigError:
    return ConfigError(
        f"{name}: the configuration says {asked}, the tensors of the parent {parent.path} say "
        f"{found}",
        f"remove {name} from the configuration, or train from scratch",
    )
