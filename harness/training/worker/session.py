"""One job from start to end: read it, train, say what happens as JSON lines; no MLflow here."""

import logging
import os
import warnings
from pathlib import Path

from speculators.train import trainer as speculators_trainer
from torch.distributed.elastic.multiprocessing.errors import record

from harness.training.folders import WEIGHTS_NAME, adopt_interrupted, list_epochs
from harness.training.messages import EXIT_CODES, Ended, Reloaded, TrainJob
from harness.training.worker.assembly import build_trainer
from harness.training.worker.draft import build_draft
from harness.training.worker.gang import join_gang
from harness.training.worker.machine import find_machine, peak_memory_bytes
from harness.training.worker.reporter import DivergedError, RefusedError, Reporter
from harness.training.worker.trainer import WatchedTrainer

_INTERRUPTED = "interrupted"


def run_in_gang(job_path: str, descriptor: int) -> int:
    """Runs a job as one of a gang: the first's exit code tells, torchrun is told of exceptions."""
    code: int = record(run_job)(job_path, descriptor)
    return code


def run_job(job_path: str, descriptor: int) -> int:
    """Runs a job; the exit code says how it ended, the last message says it in words."""
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
    job = TrainJob.model_validate_json(Path(job_path).read_bytes())
    trainer: WatchedTrainer | None = None
    gang = join_gang()
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        reporter = Reporter(stream, job.probe_steps, is_heard=gang.is_first)
        watch_logs(reporter, logging.INFO if gang.is_first else logging.WARNING)
        try:
            trainer = build_trainer(job, reporter, gang)
            ended = train(trainer, job)
            gang.leave()
        except DivergedError as error:
            ended = Ended(outcome="diverged", step=0, detail=str(error))
        except RefusedError as error:
            ended = Ended(outcome="refused", step=0, detail=str(error))
        except KeyboardInterrupt:
            ended = Ended(outcome="stopped", step=0)
        step = trainer.global_step if trainer else 0
        memory = peak_memory_bytes()
        reporter.say(ended.model_copy(update={"step": step, "peak_memory_bytes": memory}))
    return EXIT_CODES[ended.outcome] if gang.is_first else 0


def watch_logs(reporter: Reporter, level: int) -> None:
    """Sends text to stderr and metrics to the parent, each of them once."""
    logging.basicConfig(level=level, format="%(asctime)s %(name)s: %(message)s")
    metrics = logging.getLogger("speculators.metrics")
    metrics.setLevel(logging.INFO)
    metrics.propagate = False
    metrics.addHandler(reporter)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
    # The parent shows progress; the trainer's own bars would only fill the log.
    speculators_trainer.tqdm = lambda batches, **_options: batches


def train(trainer: WatchedTrainer, job: TrainJob) -> Ended:
    """Trains to the end or until a signal; a finetune is validated before its first step.

    Where the disk did not take the checkpoint of the interrupted epoch, the one before it stays.
    """
    if job.parent_weights is not None and trainer.global_step == 0:
        trainer.val_epoch(-1)
    trainer.validate_unfinished()
    trainer.run_training()
    if trainer.gang.is_first and trainer.has_saved_interrupted:
        adopt_interrupted(
            job.save_dir,
            _INTERRUPTED,
            epoch=trainer.running_epoch,
            local_step=trainer.global_step - trainer.epoch_first_step,
            step=trainer.global_step,
        )
    was_stopped = any(trainer.gang.total(trainer.was_interrupted))
    if job.is_reloading and not was_stopped:
        reload_checkpoint(trainer, job)
    return Ended(outcome="stopped" if was_stopped else "finished", step=trainer.global_step)


def reload_checkpoint(trainer: WatchedTrainer, job: TrainJob) -> None:
    """Reads the last checkpoint into a new model, strictly, and validates what was read."""
    last = list_epochs(job.save_dir)[-1]
    again = job.model_copy(
        update={"parent_weights": last.path / WEIGHTS_NAME, "draft_config_dir": last.path}
    )
    draft = build_draft(again, find_machine(job.config).attention)
    trainer.model = draft.model.to(trainer.local_rank)
    metrics = trainer.val_epoch(last.epoch)
    if metrics is not None:
        trainer.reporter.say(Reloaded(loss=metrics["loss_epoch"]))
