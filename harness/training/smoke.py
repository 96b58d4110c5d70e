"""A tiny training before a long one: ten conversations, and the loss must fall.

What it proves: the corpus can be read, the drafter learns, its checkpoint is sound and reads back
to the same loss.
"""

import statistics
from collections.abc import Sequence

from harness.config.train import TrainConfig
from harness.errors import CheckError
from harness.training.recorder import Recorder

NUM_CONVERSATIONS = 10
LONGEST_UNTESTED_S = 1800.0
"""Trainings estimated to take longer are smoke-tested first."""
PROBE_STEPS = 6
_STEPS = 24
_WINDOW = 4
_SEQ_LEN = 512
_VAL_RATIO = 0.2
_TOLERANCE = 0.05
"""Of the loss after reading a checkpoint back: weights are stored in bfloat16."""


def smoke_config(config: TrainConfig) -> TrainConfig:
    """The same training, small: what shapes the drafter stays as it is."""
    changes = {
        # Ten conversations are too few to share; what nproc adds, its first step would show.
        "nproc": 1,
        "sharding": "ddp",
        "total_seq_len": min(config.total_seq_len, _SEQ_LEN),
        "val_ratio": _VAL_RATIO,
        "epochs": _STEPS,
        "max_steps": _STEPS,
        "scheduler": "none",
        "checkpoint_freq": float(_STEPS),
        "keep_best": 1,
        "upload_below_mb": 0.0,
        "log_every_steps": 1,
        "replay_tokens": 0,
        "smoke": "never",
    }
    return config.model_copy(update=changes)


def require_learning(recorder: Recorder) -> None:
    """Judges a smoke run by its losses and its checkpoint.

    Raises:
        CheckError: The loss did not fall, or the checkpoint does not read back to what was saved.
    """
    require_falling(recorder.losses)
    before = recorder.last_saved_loss
    after = recorder.reloaded.loss if recorder.reloaded else None
    if before is None or after is None:
        raise CheckError("smoke: expected a checkpoint to read back, found none")
    if abs(after - before) > _TOLERANCE * max(1.0, abs(before)):
        raise CheckError(
            f"smoke: the checkpoint was saved at validation loss {before:.4g} and reads back to "
            f"{after:.4g}",
            "the saved weights are not the trained ones: keep the log and report it",
        )


def require_falling(losses: Sequence[float]) -> None:
    """Compares the first losses with the last ones.

    Raises:
        CheckError: The mean of the last is not below the mean of the first.
    """
    if len(losses) < 2 * _WINDOW:
        raise CheckError(f"smoke: expected {2 * _WINDOW} steps or more, found {len(losses)}")
    first, last = statistics.mean(losses[:_WINDOW]), statistics.mean(losses[-_WINDOW:])
    if last >= first:
        raise CheckError(
            f"smoke: the loss did not fall on {NUM_CONVERSATIONS} conversations: {first:.4g} in "
            f"the first {_WINDOW} steps, {last:.4g} in the last",
            "look at lr, at the corpus, or at the parent; smoke: never skips this",
        )
