"""The checkpoints of a run: what they may accept, which are best, which stay on disk."""

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.drafter.drafter import drafter_digest
from harness.tracking import names
from harness.tracking.records import Checkpoint
from harness.tracking.resolve import best_checkpoint
from harness.tracking.run import Run
from harness.tracking.store import Store
from harness.training.messages import Saved

TAG_RETAINED = "harness.retained"
"""Set to false on a checkpoint whose local files were deleted."""


class Registered(NamedTuple):
    """A checkpoint in the store."""

    model_id: str
    num_bytes: int


def estimate_acceptance_length(metrics: Mapping[str, float], k: int | None = None) -> float | None:
    """1 + the sum over steps of the product of cond_acc up to it; None without such figures.

    Over the first `k` steps, if given; None where fewer were trained.

    Teacher-forced and over the draft vocabulary alone: an upper estimate of what vLLM measures,
    with the bonus token included. Source: house words; SpecForge's simulated_acc_len plus 1.
    """
    length, product, step = 1.0, 1.0, 0
    while f"cond_acc_{step}" in metrics and step != k:
        product *= metrics[f"cond_acc_{step}"]
        length += product
        step += 1
    return length if step and k in {None, step} else None


def validation_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The trainer's validation figures under the names of the store."""
    named = {f"val/{key}": value for key, value in metrics.items()}
    length = estimate_acceptance_length(metrics)
    return named if length is None else {**named, names.METRIC_VAL_ESTIMATED_LENGTH: length}


def register_checkpoint(
    saved: Saved,
    run: Run,
    store: Store,
    *,
    dataset: tuple[str, str],
    params: Mapping[str, object],
    upload_below_bytes: int,
    replayed: Mapping[str, float] | None = None,
) -> Registered:
    """Records an epoch's checkpoint with its digests and validation figures.

    Args:
        saved: What the child said.
        run: The run that it came out of.
        store: The open store.
        dataset: Name and digest of the corpus that it was validated on.
        params: Facts of the drafter worth searching for.
        upload_below_bytes: Smaller checkpoints are stored as artifacts, too.
        replayed: What a replay of its file gave on that corpus.
    """
    digest = drafter_digest(saved.path)
    model_id = run.log_checkpoint(
        checkpoint_name(run.name, saved.epoch),
        saved.path,
        step=saved.step,
        epoch=saved.epoch,
        digest=digest,
        params=params,
        upload_below_bytes=upload_below_bytes,
    )
    figures = {**validation_metrics(saved.metrics), **(replayed or {})}
    if figures:
        store.log_model_metrics(model_id, run.run_id, figures, *dataset)
    return Registered(model_id, digest.num_bytes)


def checkpoint_name(run_name: str, epoch: int) -> str:
    """What a checkpoint is called: MLflow takes no `/ : . %` or quotes in a model's name."""
    return re.sub(r"[/:.%\"']", "-", f"{run_name} epoch {epoch}")


def plan_retention(
    checkpoints: Sequence[Checkpoint], keep_best: int, protected: frozenset[str]
) -> tuple[Checkpoint, ...]:
    """The checkpoints whose files may go: neither among the best, nor the last, nor protected.

    Args:
        checkpoints: All of a run, in order of step.
        keep_best: How many of the best stay.
        protected: Model ids that stay whatever their figures.
    """
    rest = list(checkpoints)
    best: set[str] = set()
    while rest and len(best) < keep_best:
        found = best_checkpoint(rest)
        best.add(found.model_id)
        rest.remove(found)
    last = checkpoints[-1].model_id if checkpoints else None
    return tuple(c for c in rest if c.model_id != last and c.model_id not in protected)


def apply_retention(store: Store, run_id: str, keep_best: int) -> tuple[Checkpoint, ...]:
    """Deletes the local files of checkpoints that are not worth them, and says so in the store."""
    found = store.checkpoints(run_id)
    gone = plan_retention(found, keep_best, registered_models(store))
    gone = tuple(checkpoint for checkpoint in gone if checkpoint.path.is_dir())
    for checkpoint in gone:
        store.set_model_tags(checkpoint.model_id, {TAG_RETAINED: False})
        shutil.rmtree(checkpoint.path)
    return gone


def registered_models(store: Store) -> frozenset[str]:
    """Model ids that a version of a registered model stands for."""
    registry = store.registry
    return frozenset(
        version.model_id for name in registry.names() for version in registry.versions(name)
    )
