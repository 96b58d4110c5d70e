"""speculators' trainer, watched: what it validated and saved becomes messages to the parent."""

import json
from typing import Any

from speculators.models.eagle3 import Eagle3DraftModel
from speculators.train.graceful_shutdown import TrainingInterruptedError
from speculators.train.trainer import Trainer, TrainerConfig
from torch.utils.data import DataLoader

from harness.digests import write_atomic
from harness.training.folders import FIGURES_NAME, copy_part, finish_checkpoint
from harness.training.messages import Saved, Validation
from harness.training.worker.gang import Gang
from harness.training.worker.reporter import Reporter, finite_metrics


class WatchedTrainer(Trainer):  # type: ignore[misc]
    """speculators' trainer, saying when it validated and saved."""

    def __init__(
        self,
        model: Eagle3DraftModel,
        config: TrainerConfig,
        loaders: tuple[DataLoader[Any], DataLoader[Any]],
        reporter: Reporter,
        gang: Gang,
        *,
        is_telling_parts: bool,
    ) -> None:
        super().__init__(model, config, *loaders)
        self.is_telling_parts = is_telling_parts
        self.epoch_steps = 0
        self.gang = gang
        self.config: TrainerConfig = config
        self.reporter = reporter
        self.running_epoch: int = self.current_epoch
        self.was_interrupted = self.has_saved_interrupted = False
        self.epoch_first_step: int = self.global_step - self._resume_local_step

    def train_epoch(self, epoch: int, **options: Any) -> None:
        """Trains an epoch, remembering where it began for a checkpoint in its middle."""
        self.running_epoch = epoch
        self.epoch_first_step = self.global_step - self._resume_local_step
        self.train_loader.batch_sampler.set_epoch(epoch)
        self.epoch_steps = len(self.train_loader)
        self.gang.note_signals()
        self.reporter.is_gathering = self.gang.size > 1
        super().train_epoch(epoch, step_callback=self.end_step, **options)

    def end_step(self) -> None:
        """Says what a gang did in a step, and stops all of it where one was asked to.

        Raises:
            TrainingInterruptedError: Which speculators answers by saving a checkpoint.
        """
        step, self.reporter.kept = self.reporter.kept, None
        tokens, asked = self.gang.total(step.num_tokens if step else 0, self.gang.is_asked)
        if step:
            self.reporter.say(step.model_copy(update={"num_tokens": round(tokens)}))
        if asked:
            raise TrainingInterruptedError("SIGINT")

    def val_epoch(self, epoch: int) -> dict[str, float] | None:
        """Validates and says so; -1 is before the first step.

        speculators' sampler has no batches for -1, which to it means that none were made yet.

        Raises:
            KeyboardInterrupt: A signal came; the epoch is saved, and validated on resume.
        """
        with self.gang.interruptible():
            metrics: dict[str, float] | None = super().val_epoch(max(epoch, 0))
        found = finite_metrics(metrics or {})
        self.reporter.say(Validation(step=self.global_step, epoch=epoch, metrics=found))
        return metrics

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        """Saves when due and after the last epoch; a half-written folder lacks its state file.

        speculators says in the log, and nowhere else, that the checkpoint of an interrupted epoch
        could not be written.
        """
        self.was_interrupted = not isinstance(epoch, int)
        if isinstance(epoch, int):
            if self.gang.is_first:
                self._training_state_path(epoch).unlink(missing_ok=True)
            if epoch == self.config.num_epochs - 1 and self.config.checkpoint_freq > 1:
                self.config = self.config._replace(checkpoint_freq=1.0)
        super().maybe_save_checkpoint(epoch, local_step)
        folder = self.checkpointer.path / str(epoch)
        if self.gang.is_first and folder.is_dir():
            finish_checkpoint(folder)
            if isinstance(epoch, int) and local_step and self.is_telling_parts:
                path, part = copy_part(folder, self.global_step), local_step / self.epoch_steps
                step = self.global_step
                self.reporter.say(Saved(epoch=epoch, step=step, path=path, metrics={}, part=part))
        self.has_saved_interrupted = self.was_interrupted

    def maybe_update_best(self, epoch: int, val_metrics: dict[str, float] | None) -> None:
        """After the trainer's own book-keeping, says that the epoch's checkpoint is whole."""
        super().maybe_update_best(epoch, val_metrics)
        path = self.checkpointer.path / str(epoch)
        if self.gang.is_first and self._training_state_path(epoch).is_file():
            found = finite_metrics(val_metrics or {})
            write_atomic(path / FIGURES_NAME, json.dumps(found))
            self.reporter.say(Saved(epoch=epoch, step=self.global_step, path=path, metrics=found))

    def validate_unfinished(self) -> None:
        """Makes up for a validation that the last attempt was killed in."""
        last = self.checkpointer.previous_epoch
        folder = self.checkpointer.path / str(last)
        if last >= 0 and self._resume_local_step == 0 and not (folder / FIGURES_NAME).is_file():
            self.maybe_update_best(last, self.val_epoch(last))
