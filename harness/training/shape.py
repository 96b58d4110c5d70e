"""The drafter to be trained: every dimension settled, and where head_dim came from.

From scratch a value comes from the configuration, else from the verifier, which never supplies
head_dim. With a parent, `harness.drafter.finetune` has settled everything already.
"""

from typing import Any, Literal

from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.drafter.drafter import DEFAULT_NUM_AUX, Drafter
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError

DEFAULT_DRAFT_VOCAB = 32_000
"""EAGLE-3's reduced vocabulary. Source: speculators 0.9.0, models/eagle3/config.py."""
_CHECKPOINT_BYTES = 2
"""speculators saves weights and optimiser state in bfloat16."""
_ADAM_MOMENTS = 2
_DEFAULT_EPS = 1e-5
_DEFAULT_POSITIONS = 2048


class DraftShape(Frozen):
    """Dimensions and switches of an EAGLE-3 drafter."""

    model_type: str
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
    config: TrainConfig, verifier: Verifier, corpus_aux: tuple[int, ...]
) -> DraftShape:
    """The shape of a drafter trained from scratch.

    Args:
        config: What was asked for; head_dim must be.
        verifier: Supplies what the configuration leaves open, except head_dim.
        corpus_aux: The aux layers in the corpus, without the final hidden state.

    Raises:
        ConfigError: head_dim is missing, or a value cannot be.
    """
    if config.head_dim is None:
        raise ConfigError(
            _missing_head_dim(config, verifier),
            "set head_dim in the YAML or with --set, or name a parent with --finetune-from",
        )
    rope = config.rope_parameters or verifier.rope_parameters
    if "rope_theta" not in rope:
        raise ConfigError(f"rope_parameters: expected a rope_theta, found {rope}", "set it")
    shape = DraftShape(
        model_type="llama",
        hidden_size=verifier.hidden_size,
        intermediate_size=_require_width(config, verifier),
        num_layers=config.num_layers or 1,
        num_heads=config.num_heads or verifier.num_attention_heads,
        num_kv_heads=config.num_kv_heads or verifier.num_key_value_heads,
        head_dim=config.head_dim,
        head_dim_source="config",
        vocab_size=verifier.vocab_size,
        draft_vocab_size=min(config.draft_vocab_size or DEFAULT_DRAFT_VOCAB, verifier.vocab_size),
        aux_layer_ids=config.aux_layer_ids or corpus_aux,
        norm_before_residual=_switch(config.norm_before_residual, default=True),
        norm_before_fc=_switch(config.norm_before_fc, default=not config.fc_norm),
        fc_norm=_switch(config.fc_norm, default=False),
        norm_output=_switch(config.norm_output, default=True),
        hidden_act=verifier.hidden_act or "silu",
        rms_norm_eps=verifier.rms_norm_eps or _DEFAULT_EPS,
        rope_parameters=rope,
        max_position_embeddings=verifier.max_position_embeddings or _DEFAULT_POSITIONS,
        sliding_window=None if config.sliding_window == "full" else config.sliding_window,
    )
    _check_shape(shape)
    return shape


def inherited_shape(child: Drafter, corpus_aux: tuple[int, ...]) -> DraftShape:
    """The shape of a drafter that was prepared from a parent; head_dim is the tensors' own."""
    if child.head_dim_tensors is None:
        raise ConfigError(f"head_dim: the tensors of {child.path} do not tell it")
    names = set(DraftShape.model_fields) & set(Drafter.model_fields)
    facts = {name: getattr(child, name) for name in names}
    facts |= {
        "head_dim": child.head_dim_tensors,
        "head_dim_source": "parent tensors",
        "aux_layer_ids": child.aux_layer_ids or corpus_aux,
        "hidden_act": child.hidden_act or "silu",
        "rms_norm_eps": child.rms_norm_eps or _DEFAULT_EPS,
        "max_position_embeddings": child.max_position_embeddings or _DEFAULT_POSITIONS,
    }
    return DraftShape.model_validate(facts)


def require_aux_layers(shape: DraftShape, corpus_aux: tuple[int, ...]) -> None:
    """Refuses a corpus that holds the states of other layers than the drafter takes."""
    if shape.aux_layer_ids != corpus_aux:
        raise ConfigError(
            f"aux_layer_ids: the drafter takes {list(shape.aux_layer_ids)}, the corpus holds the "
            f"states of {list(corpus_aux)}",
            "extract the corpus again with the drafter's layers, or leave aux_layer_ids out",
        )


def build_config(shape: DraftShape, verifier: Verifier, ttt_steps: int) -> dict[str, Any]:
    """The drafter's config.json in speculators format, every value explicit."""
    layer_type = "full_attention" if shape.sliding_window is None else "sliding_attention"
    decoder = {
        "model_type": shape.model_type,
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
    if len(shape.aux_layer_ids) != DEFAULT_NUM_AUX:
        # vLLM sizes fc by this, and by three where it is not there. Source: models/llama_eagle3.py.
        decoder["num_aux_hidden_states"] = len(shape.aux_layer_ids)
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


def _missing_head_dim(config: TrainConfig, verifier: Verifier) -> str:
    heads = config.num_heads or verifier.num_attention_heads
    text = "head_dim: required when training from scratch, found none; it is never inferred"
    whole, rest = divmod(verifier.hidden_size, heads)
    if rest == 0:
        text += f". Candidate: hidden_size / heads = {verifier.hidden_size} / {heads} = {whole}"
    if verifier.head_dim:
        text += f". The verifier itself is configured with {verifier.head_dim}"
    return text


def _require_width(config: TrainConfig, verifier: Verifier) -> int:
    width = config.intermediate_size or verifier.intermediate_size
    if width is None:
        raise ConfigError(
            f"intermediate_size: the verifier {verifier.reference} has no dense MLP to copy",
            f"set it; 3 x hidden_size = {3 * verifier.hidden_size} is common",
        )
    return width


def _switch(asked: bool | None, *, default: bool) -> bool:  # noqa: FBT001 - a value, no option
    return default if asked is None else asked


def _check_shape(shape: DraftShape) -> None:
    if shape.head_dim % 2:
        raise ConfigError(
            f"head_dim: rotary embeddings need an even number, found {shape.head_dim}"
        )
    if shape.num_heads % shape.num_kv_heads:
        raise ConfigError(
            f"num_heads: {shape.num_heads} is no multiple of num_kv_heads {shape.num_kv_heads}"
        )
