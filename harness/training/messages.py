"""What parent and child say to each other: one job on the way down, JSON lines on the way up.

Importable without torch, so that the parent stays light.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from harness.config.load import Frozen
from harness.config.train import TrainConfig


class TrainJob(Frozen):
    """Everything the child needs; it reads nothing else of ours."""

    config: TrainConfig
    draft_config_dir: Path
    """Holds the drafter's config.json in speculators format."""
    draft_vocab_size: int
    aux_layer_ids: tuple[int, ...]
    verifier_path: Path
    tokens_dir: Path
    hidden_states_dir: Path
    token_freq_path: Path
    draft_vocab_dir: Path | None = None
    """Folder of `harness data vocab`; None: the most frequent tokens, or the parent's."""
    parent_weights: Path | None = None
    """model.safetensors of the prepared parent, in speculators names."""
    fresh_tensors: tuple[str, ...] = ()
    """Tensors that the parent lacks and that may start at random."""
    shared_tensors: tuple[str, ...] = ()
    """Tensors that the parent lacks and takes from the verifier."""
    save_dir: Path
    """Takes one folder per epoch."""
    max_conversations: int | None = None
    """Uses only so many of the corpus's first rows."""
    is_reloading: bool = False
    """Reads the last checkpoint back at the end and validates it once more."""
    probe_steps: int | None = None
    """Announces the estimated time of the whole training after so many steps."""


class Started(Frozen):
    """The worker is about to take its first step."""

    event: Literal["started"] = "started"
    device: str
    attention: str
    loss_implementation: str
    dtype: str
    num_workers: int
    num_train_conversations: int
    num_val_conversations: int
    total_steps: int
    first_step: int
    """0, or the step at which an interrupted training goes on."""
    num_parameters: int
    num_trainable: int
    draft_vocab_coverage: float
    """Fraction of the corpus's answer tokens that lie in the draft vocabulary."""
    num_parent_tensors: int
    """Tensors proven equal to the parent's before the first step."""


class Step(Frozen):
    """One optimiser step that was logged."""

    event: Literal["step"] = "step"
    step: int
    epoch: int
    lr: float
    metrics: dict[str, float]
    step_s: float
    num_tokens: int
    """Tokens of the step without padding."""
    fetch_s: float = 0.0
    """Of step_s: waiting for the batch, until it is on the device."""


class Estimate(Frozen):
    """How long the whole training will take, from the steps measured so far."""

    event: Literal["estimate"] = "estimate"
    step_s: float
    total_s: float


class Validation(Frozen):
    """Figures on the held-out conversations after an epoch, or before the first step."""

    event: Literal["validation"] = "validation"
    step: int
    epoch: int
    """-1 before the first step."""
    metrics: dict[str, float]


class Saved(Frozen):
    """A checkpoint lies on disk: of a whole epoch, or of a part, which is to be removed."""

    event: Literal["saved"] = "saved"
    epoch: int
    step: int
    path: Path
    metrics: dict[str, float]
    """The validation figures of this checkpoint; none of a part."""
    part: float = 1.0
    """Share of the epoch's steps that were done."""

    @property
    def is_part(self) -> bool:
        """Whether the epoch goes on: such a checkpoint is replayed, but not recorded."""
        return self.part < 1


class Reloaded(Frozen):
    """The saved weights were read back into a new model and validated."""

    event: Literal["reloaded"] = "reloaded"
    loss: float


Outcome = Literal["finished", "stopped", "diverged", "refused"]
"""stopped: asked to; diverged: a loss that is not finite; refused: the input is unusable."""
EXIT_CODES: dict[Outcome, int] = {"finished": 0, "refused": 2, "diverged": 3, "stopped": 130}


class Ended(Frozen):
    """The last line of a child that came to an end by itself."""

    event: Literal["ended"] = "ended"
    outcome: Outcome
    step: int
    detail: str | None = None
    peak_memory_bytes: int | None = None
    """Highest resident memory of the child, or of the accelerator where there is one."""


Message = Annotated[
    Started | Step | Estimate | Validation | Saved | Reloaded | Ended, Field(discriminator="event")
]
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Message)


def parse_message(line: str | bytes) -> Message:
    """Reads one line of the child; a line that is no message is a programmer's mistake."""
    return _ADAPTER.validate_json(line)
