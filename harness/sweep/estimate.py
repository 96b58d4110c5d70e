"""What a sweep will take: disk by the shapes that it may train, time by how fast this store trains.

Estimates are upper ends: nothing is taken off for pruning.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.config.load import Frozen
from harness.config.sweep import ChoiceAxis, SweepConfig
from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError, PrerequisiteError
from harness.settings import Settings
from harness.sweep.slots import Slot, busy_reason
from harness.sweep.space import Params, Point, Space
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.tracking.resolve import resolve_drafter
from harness.tracking.store import Store
from harness.training.plan import TrainPlan, find_folder
from harness.training.shape import inherited_shape, resolve_shape

_RESERVE_BYTES = 1 << 30
"""Left free for the store, logs and measurements."""


class Estimate(Frozen):
    """What a sweep takes at most."""

    num_trials: int
    trial_bytes: int
    """Checkpoints of the largest training, optimiser state and uploads included."""
    free_bytes: int
    corpus_bytes: int
    """Hidden states that all trials share; they are there already."""
    trial_s: float | None
    """Of the longest training; None where no training of this verifier is in the store."""
    num_slots: int

    @property
    def total_bytes(self) -> int:
        """All trials together."""
        return self.num_trials * self.trial_bytes

    @property
    def total_s(self) -> float | None:
        """All trainings, each slot taking its turns."""
        turns = -(-self.num_trials // self.num_slots)
        return None if self.trial_s is None else turns * self.trial_s


class Estimator:
    """Knows the verifier and corpus of a sweep.

    Args:
        base: The base training.
        settings: Where things are.
        store: For parents, and for how fast trainings were.

    Raises:
        ConfigError: The verifier, the corpus or the parent is not there.
    """

    def __init__(self, base: TrainConfig, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._verifier = Verifier.load(base.verifier, settings)
        self._corpus = Corpus.load(find_folder(base.corpus, settings), deep=False)
        self._parent: Path | None = None
        if base.finetune_from is not None:
            self._parent = resolve_drafter(base.finetune_from, settings, store).path

    def needed_bytes(self, train: TrainConfig) -> int:
        """Disk that one training takes at most."""
        aux = self._corpus.aux_layer_ids
        if self._parent is not None:
            shape = inherited_shape(Drafter.load(self._parent), aux)
        else:
            shape = resolve_shape(train, self._verifier, aux)
        known: dict[str, Any] = {"config": train, "shape": shape}
        return TrainPlan.model_construct(**known).needed_bytes

    def needed_s(self, train: TrainConfig) -> float | None:
        """Seconds that one training takes, by the newest finished one of this verifier."""
        rate = self._tokens_per_s()
        if rate is None:
            return None
        tokens = self._corpus.num_tokens * (1 - train.val_ratio) * train.epochs
        if train.max_steps is not None:
            tokens = min(tokens, train.max_steps * train.total_seq_len)
        return tokens / rate

    def estimate(self, config: SweepConfig, space: Space, num_slots: int) -> Estimate:
        """What the whole sweep takes, by the most expensive corner of its space."""
        corners = [space.resolve(params).train for params in _corners(space)]
        times = [seconds for train in corners if (seconds := self.needed_s(train)) is not None]
        corpus = self._corpus.hidden_states_dir
        return Estimate(
            num_trials=config.n_trials,
            trial_bytes=max(self.needed_bytes(train) for train in corners),
            free_bytes=_free_bytes(self._settings),
            corpus_bytes=sum(p.stat().st_size for p in corpus.glob("*.safetensors")),
            trial_s=max(times, default=None),
            num_slots=num_slots,
        )

    def require_room(self, points: Sequence[Point], slot: Slot, num_beside: int = 0) -> None:
        """Refuses to start a trial that would not find disk, or a GPU that another uses.

        Args:
            points: Of the trial and of those that run, which may not have written anything yet.
            slot: Where it would run.
            num_beside: Those of them that run on its GPU.

        Raises:
            PrerequisiteError: Says what is needed, and what there is.
        """
        needed = sum(self.needed_bytes(point.train) for point in points) + _RESERVE_BYTES
        free = _free_bytes(self._settings)
        if free < needed:
            raise PrerequisiteError(
                f"{len(points)} trials at once need up to {needed / 1e9:.1f} GB with a reserve, "
                f"{self._settings.checkpoints_dir} has {free / 1e9:.1f} GB free",
                "free space, or set fixed: {keep_best: 1, upload_below_mb: 0}; the same command "
                "goes on",
            )
        if reason := busy_reason(slot, num_beside):
            raise PrerequisiteError(reason, "wait until it is free, or hide it and call again")

    def _tokens_per_s(self) -> float | None:
        wanted = {names.TAG_VERIFIER: self._verifier.reference}
        runs = self._store.find_runs(
            kind=names.KIND_TRAIN, tags=wanted, status=RunStatus.FINISHED, limit=20
        )
        rates = [run.metrics.get(names.METRIC_TOKENS_PER_S) for run in runs]
        return next((rate for rate in rates if rate), None)


def _corners(space: Space) -> list[Params]:
    """The base, and the base with each axis at each of its ends, where that is a training."""
    corners = [space.base_params]
    for key, axis in space.axes.items():
        ends = axis.choices if isinstance(axis, ChoiceAxis) else (axis.low, axis.high)
        for end in ends:
            params = {**space.base_params, **axis.when, key: end}
            try:
                space.resolve(params)
            except ConfigError:
                continue
            corners.append(params)
    return corners


def _free_bytes(settings: Settings) -> int:
    folder = settings.checkpoints_dir
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free
