"""What the store hands out: runs, checkpoints and model versions as plain frozen documents."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from harness.config.load import Frozen
from harness.digests import FolderDigest


class RunStatus(StrEnum):
    """The states of a run, spelled as MLflow spells them."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class Metric(NamedTuple):
    """One point of a curve. `timestamp_ms` None means now."""

    key: str
    value: float
    step: int = 0
    timestamp_ms: int | None = None


class Dataset(Frozen):
    """A data set that went into a run, named by the digest of its content."""

    name: str
    source: str
    digest: str
    """The whole digest, also where MLflow shows only its first 36 characters."""
    context: str
    """What it was used for: training, validation, evaluation."""


class RunSummary(Frozen):
    """A run as it stands in the store: the latest value of each metric, times in epoch ms."""

    run_id: str
    name: str
    kind: str
    experiment: str
    status: RunStatus
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    datasets: tuple[Dataset, ...] = ()
    model_inputs: tuple[str, ...] = ()
    start_ms: int
    end_ms: int | None


class Checkpoint(Frozen):
    """Weights of a training run: where they lie, what they must hash to, what was measured."""

    model_id: str
    run_id: str
    name: str
    path: Path
    step: int
    epoch: int | None
    digest: str
    """Root digest of the drafter's files; write-once in the store."""
    num_bytes: int
    is_uploaded: bool
    """Whether the files are in the artifact store too."""
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]


class NewCheckpoint(Frozen):
    """A checkpoint on its way into the store, its facts already spelled as params and tags."""

    name: str
    digest: FolderDigest
    step: int
    params: dict[str, str]
    tags: dict[str, str]


class ModelVersion(Frozen):
    """A version of a registered model; each stands for one checkpoint."""

    name: str
    version: int
    model_id: str
    run_id: str | None
    aliases: tuple[str, ...]
    tags: dict[str, str]
    description: str = ""
    """Markdown, for people."""
    created_ms: int


def latest_values(points: Iterable[Metric]) -> dict[str, float]:
    """The value that stands for each key: highest step, then latest time, then highest value."""
    ordered = sorted(points, key=lambda m: (m.step, m.timestamp_ms or 0, m.value))
    return {metric.key: metric.value for metric in ordered}
