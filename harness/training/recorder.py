"""What the child says, written to the store: curves in batches, checkpoints as they come."""

import shutil
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from eval.progress import ProgressFn
from harness.drafter.checks import require_sound
from harness.tracking import names
from harness.tracking.records import Metric
from harness.tracking.run import Run
from harness.tracking.store import Store
from harness.tracking.waterfall import read_gap, write_gap
from harness.training.checkpoints import (
    apply_retention,
    register_checkpoint,
    validation_metrics,
)
from harness.training.folders import drop_resume_state
from harness.training.messages import (
    Ended,
    Estimate,
    Message,
    Reloaded,
    Saved,
    Started,
    Step,
    Validation,
)
from harness.training.plan import TrainPlan
from harness.training.replayed import (
    ReplayFn,
    empty_gap,
    gap_entry,
    prompt_figures,
    validation_figures,
)
from harness.training.spool import Spool

if TYPE_CHECKING:
    from harness.training.validation import CheckpointReplay

_FLUSH_S = 5.0
_MACHINE_PARAMS = (
    "device", "attention", "loss_implementation", "dtype", "num_workers", "total_steps",
    "num_parameters", "num_trainable", "draft_vocab_coverage", "num_train_conversations",
    "num_val_conversations", "num_parent_tensors",
)  # fmt: skip
_UNKNOWN_DTYPE = "bfloat16"
"""Of a training whose child said nothing yet: the wider tolerance."""


class Recorded(NamedTuple):
    """A checkpoint whose files are still there."""

    model_id: str | None
    """In the store; None of a part of an epoch, which is not recorded."""
    saved: Saved
    replayed: "CheckpointReplay | None"


class Recorder:
    """Takes the messages of one attempt; `finish` and `flush` must be called at the end.

    A checkpoint is recorded when its replay is done, with all its figures at once; one that is
    lost before is found again when the training is resumed.
    """

    def __init__(
        self,
        run: Run,
        store: Store,
        plan: TrainPlan,
        progress: ProgressFn,
        *,
        attempt: int,
        replay: ReplayFn | None = None,
        on_checkpoint: Callable[[Recorded], None] | None = None,
    ) -> None:
        self.started: Started | None = None
        self.estimate: Estimate | None = None
        self.ended: Ended | None = None
        self.reloaded: Reloaded | None = None
        self.losses: list[float] = []
        self.last_saved_loss: float | None = None
        self.num_tokens = 0
        self.train_s = 0.0
        self.fetch_s = 0.0
        self.checkpoint_bytes = 0
        self._run, self._store, self._plan = run, store, plan
        self._progress = progress
        self._attempt = attempt
        self._replay, self._on_checkpoint = replay, on_checkpoint
        self._pending: tuple[Saved, Generator[None, None, CheckpointReplay]] | None = None
        self._spool = Spool(run.log_metrics)
        self._last_flush = time.monotonic()

    def take(self, message: Message) -> None:
        """Keeps or writes what one message says."""
        match message:
            case Started():
                self._take_start(message)
            case Step():
                self._take_step(message)
            case Validation():
                self._add(validation_metrics(message.metrics), message.step)
            case Saved():
                self._take_checkpoint(message)
            case Estimate():
                self.estimate = message
            case Reloaded():
                self.reloaded = message
            case Ended():
                self.ended = message

    def work(self) -> bool:
        """Does a slice of the replay of a saved checkpoint; whether there is more to do.

        Raises:
            CheckError: The checkpoint does not compute what was trained.
        """
        if self._pending is None:
            return False
        saved, slices = self._pending
        try:
            next(slices)
        except StopIteration as done:
            self._pending = None
            self._take_replay(saved, done.value)
        return self._pending is not None

    def finish(self) -> None:
        """Does all that is left of a replay."""
        while self.work():
            pass

    def add_resources(self, figures: Mapping[str, float], elapsed_s: float) -> None:
        """Points of the system curves; their step is seconds since the attempt began."""
        self._add({f"system/{key}": value for key, value in figures.items()}, int(elapsed_s))

    def flush(self, *, is_due: bool = False) -> None:
        """Writes what has gathered; with `is_due` in the background, and not too often."""
        if not is_due:
            self._spool.drain()
        elif time.monotonic() - self._last_flush >= _FLUSH_S:
            self._spool.push()
            self._last_flush = time.monotonic()

    def summary(self, wall_s: float) -> dict[str, float]:
        """Figures of the whole attempt; what was not measured is left out."""
        figures = {names.METRIC_WALL_TIME_S: wall_s}
        if self.train_s > 0:
            figures[names.METRIC_STEPS_PER_S] = len(self.losses) / self.train_s
            figures[names.METRIC_TOKENS_PER_S] = self.num_tokens / self.train_s
            figures[names.METRIC_DATA_WAIT_SHARE] = self.fetch_s / self.train_s
        if self.checkpoint_bytes:
            figures[names.METRIC_CHECKPOINT_BYTES] = float(self.checkpoint_bytes)
        if self.ended and self.ended.peak_memory_bytes is not None:
            figures[names.METRIC_PEAK_MEMORY_BYTES] = float(self.ended.peak_memory_bytes)
        return figures

    def log_summary(self, wall_s: float) -> None:
        """Writes everything that is left, and the figures of the attempt."""
        step = self.ended.step if self.ended else len(self.losses)
        self._add(self.summary(wall_s), step)
        self.flush()

    def _take_start(self, message: Started) -> None:
        self.started = message
        facts = message.model_dump(include=set(_MACHINE_PARAMS))
        if self._attempt == 1:
            self._run.log_params(facts)
        else:
            prefix = f"attempt.{self._attempt}"
            self._run.set_tags({f"{prefix}.{key}": value for key, value in facts.items()})
            self._run.set_tags({f"{prefix}.first_step": message.first_step})
        self._progress("training", message.first_step, message.total_steps)

    def _take_step(self, message: Step) -> None:
        done = message.step + 1
        self.losses.append(message.metrics["loss"])
        self.num_tokens += message.num_tokens
        self.train_s += message.step_s
        self.fetch_s += message.fetch_s
        figures = {f"train/{key}": value for key, value in message.metrics.items()}
        figures |= {"train/lr": message.lr, "train/step_s": message.step_s}
        self._add(figures, done)
        if self.started:
            self._progress("training", done, self.started.total_steps)

    def _take_checkpoint(self, message: Saved) -> None:
        """One replay at a time: a child that is faster waits when its pipe is full."""
        require_sound(message.path, self._plan.verifier)
        if not message.is_part:
            self.last_saved_loss = message.metrics.get("loss")
        drop_resume_state(message.path.parent, keep_last=True)
        self.finish()
        if self._replay is None:
            self._take_replay(message, None)
        else:
            dtype = self.started.dtype if self.started else _UNKNOWN_DTYPE
            self._pending = message, self._replay(message, dtype)

    def _take_replay(self, saved: Saved, replayed: "CheckpointReplay | None") -> None:
        if not saved.is_part:
            self._register(saved, replayed)
            return
        if replayed:
            self._add(validation_figures(replayed) | prompt_figures(replayed), saved.step)
        if self._on_checkpoint:
            self._on_checkpoint(Recorded(None, saved, replayed))
        shutil.rmtree(saved.path)

    def _register(self, saved: Saved, replayed: "CheckpointReplay | None") -> None:
        figures = validation_figures(replayed) if replayed else {}
        self.flush()
        corpus, shape = self._plan.corpus, self._plan.shape
        found = register_checkpoint(
            saved,
            self._run,
            self._store,
            dataset=(corpus.dir.name, corpus.digest),
            params={
                names.PARAM_HEAD_DIM: shape.head_dim,
                names.PARAM_HEAD_DIM_SOURCE: shape.head_dim_source,
                "draft_vocab_size": shape.draft_vocab_size,
                "dtype": "bfloat16",
            },
            upload_below_bytes=self._plan.config.upload_below_bytes,
            replayed=figures,
        )
        self.checkpoint_bytes = found.num_bytes
        if replayed:
            self._record_replay(found.model_id, saved, replayed)
        if self._on_checkpoint:
            self._on_checkpoint(Recorded(found.model_id, saved, replayed))
        apply_retention(self._store, self._run.run_id, self._plan.config.keep_best)

    def _record_replay(self, model_id: str, saved: Saved, replayed: "CheckpointReplay") -> None:
        gap = read_gap(self._store, self._run.run_id) or empty_gap(self._plan)
        write_gap(self._run, gap.put(gap_entry(model_id, saved, replayed)))
        on_prompts = prompt_figures(replayed)
        if on_prompts:
            dataset = (gap.prompts or "", gap.prompts_digest)
            self._store.log_model_metrics(model_id, self._run.run_id, on_prompts, *dataset)
        if replayed.in_domain is None:
            share = f"{replayed.share_unequal:.1%}"
            self._run.set_tags({names.TAG_NOT_GREEDY: f"{share} of the validation answers"})
        if (agreement := replayed.agreement) and not agreement.is_judged:
            told = f"epoch {saved.epoch}: {agreement.describe_unlearned()}"
            self._run.set_tags({names.TAG_NOT_JUDGED: told})
        figures = validation_figures(replayed) | on_prompts
        self._add({**figures, names.METRIC_REPLAY_S: replayed.replay_s}, saved.step)
        self.flush()

    def _add(self, figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._spool.add([Metric(key, value, step, now) for key, value in figures.items()])
