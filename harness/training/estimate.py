"""What a training will take of the machine, before it begins: memory of the child, steps, disk.

Held against measured trainings of SmolLM2 by a test, within a quarter.
"""

from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.training.shape import DraftShape

_FLOAT, _STATE = 4, 16
"""Bytes of a float32, and of a trained one with its gradient and AdamW's two moments."""
_LIBRARIES = {"cpu": 750_000_000, "cuda": 1_200_000_000}
"""Resident before a tensor is made: torch and speculators on a CPU, the CUDA context on a GPU."""
_LOGIT_COPIES = 6
"""Of the scores of one step that live at once: drafter's and verifier's, softmaxes, gradients."""
_LAYER_COPIES = 16
"""Activations of one decoder layer kept for the backward pass, in units of tokens x hidden."""


class TrainEstimate(Frozen):
    """Upper ends, but for memory, which is a middle."""

    memory_bytes: int
    """Of the training process: GPU memory where it trains on one, else resident memory."""
    checkpoint_bytes: int
    optimizer_bytes: int


def estimate_training(config: TrainConfig, shape: DraftShape, device: str) -> TrainEstimate:
    """What a training of this shape takes.

    Args:
        config: The training.
        shape: Of its drafter.
        device: cpu or cuda.
    """
    hidden, tokens = shape.hidden_size, config.total_seq_len
    # Embedding once, head twice: the drafter's and the verifier's rows that give its targets.
    frozen = hidden * (shape.vocab_size + 2 * shape.draft_vocab_size)
    width = shape.num_heads * shape.head_dim + shape.intermediate_size + hidden
    layer = tokens * (_LAYER_COPIES * hidden + 4 * width) * shape.num_layers
    scores = _LOGIT_COPIES * tokens * shape.draft_vocab_size
    steps = config.ttt_steps * (layer + scores) * _FLOAT
    states = tokens * hidden * (len(shape.aux_layer_ids) + 1) * _FLOAT
    weights = shape.num_trainable * _STATE + frozen * _FLOAT
    return TrainEstimate(
        memory_bytes=_LIBRARIES[device] + weights + steps + states,
        checkpoint_bytes=shape.checkpoint_bytes,
        optimizer_bytes=shape.optimizer_bytes,
    )
