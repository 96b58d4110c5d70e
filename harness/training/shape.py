"""The drafter to be trained: every dimension settled, and where head_dim came from.

A value comes from the configuration, else from the parent drafter's tensors, else from the
verifier. head_dim is the exception: the verifier never supplies it.
"""

from typing import Any, Literal, TypeVar

from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError

DEFAULT_DRAFT_VOCAB = 32_000
"""EAGLE-3's reduced vocabulary. Source: speculators 0.9.0, models/eagle3/config.py."""
_CHECKPOINT_BYTES = 2
"""speculators saves weights and optimiser state in bfloat16."""
_ADAM_MOMENTS = 2

Value = TypeVar("Value")


class DraftShape(Frozen):
    """Dimensions and switches of an EAGLE-3 drafter with Llama layers."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_source: Literal["config", "parent tensors"]
    vocab_size: int
    draft_vocab_size: int
    aux_layer_ids: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    hidden_act: str
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    sliding_window: int | None
    """Tokens that a position sees; None is all of them."""

    @property
    def num_trainable(self) -> int:
        """Values that the optimiser moves while the output head is frozen."""
        hidden, width = self.hidden_size, self.num_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        mlp = 3 * hidden * self.intermediate_size
        attention = sum(
            (2 if layer == 0 else 1) * hidden * (width + 2 * kv_width) + width * hidden
            for layer in range(self.num_layers)
        )
        return len(self.aux_layer_ids) * hidden * hidden + attention + self.num_layers * mlp

    @property
    def checkpoint_bytes(self) -> int:
        """Size of a checkpoint's weights, the copy of the embedding and the head included."""
        tables = self.hidden_size * (self.vocab_size + self.draft_vocab_size)
        return _CHECKPOINT_BYTES * (self.num_trainable + tables)

    @property
    def optimizer_bytes(self) -> int:
        """Size of the optimiser state beside it, with the head trained."""
        head = self.hidden_size * self.draft_vocab_size
        return _CHECKPOINT_BYTES * _ADAM_MOMENTS * (self.num_trainable + head)


def resolve_shape(
    config: TrainConfig, verifier: Verifier, corpus_aux: tuple[int, ...], parent: Drafter | None
) -> DraftShape:
    """Settles the shape, refusing values that contradict the parent's tensors.

    Args:
        config: What was asked for.
        verifier: Supplies what neither the configuration nor a parent says, except head_dim.
        corpus_aux: The aux layers in the corpus, without the final hidden state.
        parent: The drafter to finetune from, as its tensors say.
    """
    head_dim, source = _resolve_head_dim(config, verifier, parent)
    shape = DraftShape(
        hidden_size=verifier.hidden_size,
        intermediate_size=_size("intermediate_size", config, parent, verifier.intermediate_size),
        num_layers=_size("num_layers", config, parent, 1),
        num_heads=_size("num_heads", config, parent, verifier.num_attention_heads),
        num_kv_heads=_size("num_kv_heads", config, parent, verifier.num_key_value_heads),
        head_dim=head_dim,
        head_dim_source=source,
        vocab_size=verifier.vocab_size,
        draft_vocab_size=_draft_vocab(config, verifier, parent),
        aux_layer_ids=_aux_layers(config, verifier, corpus_aux, parent),
        norm_before_residual=_switch("norm_before_residual", config, parent, default=True),
        norm_before_fc=_switch("norm_before_fc", config, parent, default=not config.fc_norm),
        fc_norm=_switch("fc_norm", config, parent, default=False),
        norm_output=_switch("norm_output", config, parent, default=True),
        hidden_act=_first(parent and parent.hidden_act, verifier.hidden_act, "silu"),
        rms_norm_eps=_first(parent and parent.rms_norm_eps, verifier.rms_norm_eps, 1e-5),
        rope_parameters=_rope(config, verifier, parent),
        max_position_embeddings=_first(verifier.max_position_embeddings, 2048),
        sliding_window=_window(config, parent),
    )
    _check_shape(shape)
    return shape


def describe_changes(shape: DraftShape, parent: Drafter) -> tuple[str, ...]:
    """Switches that differ from the parent's and so change what its weights compute."""
    names = (
        "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
        "rope_parameters", "sliding_window", "hidden_act", "rms_norm_eps",
    )  # fmt: skip
    pairs = [(name, getattr(parent, name), getattr(shape, name)) for name in names]
    if parent.aux_layer_ids:
        pairs.append(("aux_layer_ids", parent.aux_layer_ids, shape.aux_layer_ids))
    return tuple(
        f"{name}: the parent was trained with {old}, this training uses {new}"
        for name, old, new in pairs
        if old is not None and old != new
    )


def build_config(shape: DraftShape, verifier: Verifier, ttt_steps: int) -> dict[str, Any]:
    """The drafter's config.json in speculators format, every value explicit."""
    layer_type = "full_attention" if shape.sliding_window is None else "sliding_attention"
    decoder = {
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": shape.hidden_act,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": shape.rope_parameters,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "sliding_window": shape.sliding_window,
        "use_sliding_window": shape.sliding_window is not None,
        "layer_types": [layer_type] * shape.num_layers,
    }
    proposal = {"proposal_type": "greedy", "speculative_tokens": ttt_steps}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": shape.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(shape.aux_layer_ids),
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
        "transformer_layer_config": decoder,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {
                "name_or_path": str(verifier.path),
                "architectures": list(verifier.architectures),
            },
        },
    }


def _resolve_head_dim(
    config: TrainConfig, verifier: Verifier, parent: Drafter | None
) -> tuple[int, Literal["config", "parent tensors"]]:
    if parent is not None:
        found = parent.head_dim_tensors
        if found is None:
            raise ConfigError(
                f"head_dim: the tensors of the parent {parent.path} do not tell it",
                "see `harness verify` on the parent",
            )
        if config.head_dim not in (None, found):
            raise _contradiction("head_dim", config.head_dim, found, parent)
        return found, "parent tensors"
    if config.head_dim is not None:
        return config.head_dim, "config"
    raise ConfigError(_missing_head_dim(config, verifier), "set head_dim in the YAML or with --set")


def _missing_head_dim(config: TrainConfig, verifier: Verifier) -> str:
    heads = config.num_heads or verifier.num_attention_heads
    text = "head_dim: required when training from scratch, found none; it is never inferred"
    whole, rest = divmod(verifier.hidden_size, heads)
    if rest == 0:
        text += f". Candidate: hidden_size / heads = {verifier.hidden_size} / {heads} = {whole}"
    if verifier.head_dim:
        text += f". The verifier itself is configured with {verifier.head_dim}"
    return text


def _size(name: str, config: TrainConfig, parent: Drafter | None, default: int | None) -> int:
    asked: int | None = getattr(config, name)
    if parent is not None:
        found: int = getattr(parent, name)
        if asked not in (None, found):
            raise _contradiction(name, asked, found, parent)
        return found
    value = asked or default
    if value is None:
        raise ConfigError(f"{name}: the verifier's config does not tell it", f"set {name}")
    return value


def _draft_vocab(config: TrainConfig, verifier: Verifier, parent: Drafter | None) -> int:
    if parent is not None and config.vocab_policy == "keep":
        return _size("draft_vocab_size", config, parent, None)
    default = parent.draft_vocab_size if parent else DEFAULT_DRAFT_VOCAB
    return min(config.draft_vocab_size or default, verifier.vocab_size)


def _aux_layers(
    config: TrainConfig, verifier: Verifier, corpus_aux: tuple[int, ...], parent: Drafter | None
) -> tuple[int, ...]:
    asked = config.aux_layer_ids or (parent.aux_layer_ids if parent else None) or corpus_aux
    if asked != corpus_aux:
        raise ConfigError(
            f"aux_layer_ids: expected {list(asked)}, the corpus holds the states of "
            f"{list(corpus_aux)}",
            "extract the corpus again with these layers, or take the layers that it has",
        )
    if asked[-1] > verifier.num_layers:
        raise ConfigError(
            f"aux_layer_ids: {list(asked)} lie outside a verifier of {verifier.num_layers} layers"
        )
    return asked


def _switch(name: str, config: TrainConfig, parent: Drafter | None, *, default: bool) -> bool:
    asked: bool | None = getattr(config, name)
    inherited: bool | None = getattr(parent, name) if parent else None
    return _first(asked, inherited, default)


def _rope(config: TrainConfig, verifier: Verifier, parent: Drafter | None) -> dict[str, Any]:
    inherited = parent.rope_parameters if parent else verifier.rope_parameters
    rope = config.rope_parameters or inherited
    if "rope_theta" not in rope:
        raise ConfigError(f"rope_parameters: expected a rope_theta, found {rope}", "set it")
    return rope


def _window(config: TrainConfig, parent: Drafter | None) -> int | None:
    if config.sliding_window == "full":
        return None
    return config.sliding_window or (parent.sliding_window if parent else None)


def _check_shape(shape: DraftShape) -> None:
    if shape.head_dim % 2:
        raise ConfigError(
            f"head_dim: rotary embeddings need an even number, found {shape.head_dim}"
        )
    if shape.num_heads % shape.num_kv_heads:
        raise ConfigError(
            f"num_heads: {shape.num_heads} is no multiple of num_kv_heads {shape.num_kv_heads}"
        )


def _contradiction(name: str, asked: object, found: int, parent: Drafter) -> ConfigError:
    return ConfigError(
        f"{name}: the configuration says {asked}, the tensors of the parent {parent.path} say "
        f"{found}",
        f"remove {name}, or train from scratch",
    )


def _first(*values: Value | None) -> Value:
    """The first value that is given."""
    return next(value for value in values if value is not None)
