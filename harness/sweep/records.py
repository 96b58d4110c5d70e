"""What the parts of a sweep tell each other: a job, what its process says, how a trial stands."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.settings import Settings

SPEC_NAME = "spec.json"
OWNER_NAME = "owner.json"
LOG_NAME = "trial.log"


class Reason(StrEnum):
    """Why a trial failed."""

    OOM = "OOM"
    NAN = "NaN"
    KILLED = "killed"
    REFUSED = "verify refused"
    INVALID = "invalid point"
    SERVER = "server died"
    DISK = "disk full"
    STORE = "store unreachable"
    LOST = "host lost"
    ERROR = "error"


class TrialSpec(Frozen):
    """Everything a trial's process needs."""

    sweep_id: str
    sweep_name: str
    number: int
    attempt: int
    """Counts from 1; each attempt writes a file of events of its own."""
    train: TrainConfig
    settings: Settings
    parent_run_id: str
    run_id: str | None = None
    """The run of an earlier attempt, to go on with."""


class RunOpened(Frozen):
    """The training's run in the store."""

    event: Literal["run"] = "run"
    run_id: str


class _OfCheckpoint(Frozen):
    """What was found of a checkpoint."""

    architecture: str | None = None
    """Equal for drafters that one engine can serve in turn."""
    val_loss: float | None = None
    acceptance_length: float | None = None
    """Of the greedy walk over the held-out answers at the trial's K."""


class Epoch(_OfCheckpoint):
    """A checkpoint of a training under way."""

    event: Literal["epoch"] = "epoch"
    model_id: str | None
    """None of a part of an epoch."""
    epoch: int
    """Counted from 0."""
    part: float = 1.0
    """Share of it that was trained."""
    step: int
    resource: int | None = None
    """Checkpoints of the trial so far, this one included; None: one an epoch."""
    by_prompt: dict[str, float] = Field(default_factory=dict)
    """The acceptance length of each prompt that drafted."""

    @property
    def num_epochs(self) -> float:
        """Epochs that were trained."""
        return self.epoch + 1 if self.part == 1 else round(self.epoch + self.part, 2)

    @property
    def rung(self) -> int:
        """What a pruner counts in."""
        return self.resource if self.resource is not None else self.epoch + 1


class Trained(_OfCheckpoint):
    """The training is finished; figures are of its best checkpoint."""

    event: Literal["trained"] = "trained"
    model_id: str
    run_id: str
    path: Path
    epoch: int | None
    num_parameters: int | None
    train_s: float | None


class Failed(Frozen):
    """The training failed, and the process knows why."""

    event: Literal["failed"] = "failed"
    reason: Reason
    detail: str


class Stopped(Frozen):
    """The process was asked to stop, saved what it could and did."""

    event: Literal["stopped"] = "stopped"


Event = Annotated[RunOpened | Epoch | Trained | Failed | Stopped, Field(discriminator="event")]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def events_path(folder: Path, attempt: int) -> Path:
    """Where an attempt's process writes what it has to say."""
    return folder / f"events-{attempt}.jsonl"


def read_events(path: Path, num_known: int = 0) -> list[Event]:
    """The events of an attempt after the first `num_known`; a line cut short is not there yet."""
    if not path.is_file():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    found: list[Event] = []
    for line in lines[num_known:]:
        try:
            found.append(_EVENT.validate_json(line))
        except ValidationError:  # a disk that was full cut it short, and more was written after it
            found.append(Failed(reason=Reason.ERROR, detail=f"unreadable event: {line[:80]!r}"))
    return found


class TrialState(StrEnum):
    """Where a trial stands in the study, in Optuna's words."""

    RUNNING = "RUNNING"
    WAITING = "WAITING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"


class Trial(Frozen):
    """A trial as the study has it."""

    number: int
    state: TrialState
    params: dict[str, Any]
    values: tuple[float, ...] | None
    reports: dict[int, float]
    facts: dict[str, Any]
    """What was noted of it: origin, stage, attempts, run_id, figures, reason, duplicate_of."""
    served: dict[str, Any] = Field(default_factory=dict)
    """Figures from vLLM: speedup and acceptance length with their ends."""
    is_feasible: bool = True
    started_s: float | None = None
    """Epoch seconds."""
    duration_s: float | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will change it."""
        return self.state in {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}

    @property
    def stage(self) -> str:
        """How far it came, in a word."""
        return str(self.facts.get("stage", "asked"))

    @property
    def origin(self) -> str:
        """Who asked for it: base, baseline <i>, grid <i>, retry of <n>, or the sampler."""
        return str(self.facts.get("origin", "sampler"))

    @property
    def num_attempts(self) -> int:
        """How often a process was started for it."""
        return int(self.facts.get("attempts", 0))

    @property
    def retry(self) -> dict[str, Any]:
        """What was decided after its last failure: count, after_attempt, reason, total_seq_len."""
        return dict(self.facts.get("retry", {}))

    def figure(self, name: str) -> float | None:
        """A number that was noted of it."""
        value = self.facts.get(name)
        return float(value) if isinstance(value, int | float) else None


def params_key(params: dict[str, Any]) -> str:
    """Equal for equal points."""
    return json.dumps(params, sort_keys=True)
