"""A job in speculators' own words: its TrainConfig, its data loaders, its trainer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from hs_connectors.transfer import FP8Transfer
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.cli import set_seed
from speculators.train.config import TrainConfig as SpeculatorsConfig
from speculators.train.dataloader import create_train_val_loaders
from speculators.train.trainer import TrainerConfig
from torch.utils.data import DataLoader

from harness.training.folders import discard_unusable
from harness.training.messages import Started, TrainJob
from harness.training.worker.draft import build_draft
from harness.training.worker.gang import Gang
from harness.training.worker.machine import Machine, find_machine
from harness.training.worker.reporter import Reporter
from harness.training.worker.trainer import WatchedTrainer

_MODEL = "verifier_name_or_path"


def build_trainer(job: TrainJob, reporter: Reporter, gang: Gang) -> WatchedTrainer:
    """Model, data and trainer of a job, resumed from its last whole checkpoint if it has one."""
    machine = find_machine(job.config)
    if gang.is_first:
        discard_unusable(job.save_dir)
        limit_tokens(job)
        job.save_dir.mkdir(parents=True, exist_ok=True)
    gang.wait()
    settings = speculators_config(job, machine)
    set_seed(settings.seed)
    draft = build_draft(job, machine.attention)
    if gang.size > 1:  # the same weights, but noise of its own
        torch.manual_seed(settings.seed + gang.rank)
    train_loader, val_loader = build_loaders(settings, job, draft.model)
    total_steps, num_epochs = plan_steps(train_loader, job)
    trainer = WatchedTrainer(
        draft.model,
        trainer_config(settings, total_steps, num_epochs),
        (train_loader, val_loader),
        reporter,
        gang,
        is_telling_parts=job.config.replay_tokens > 0,
    )
    reporter.total_steps = total_steps
    reporter.say(
        Started(
            **machine._asdict(),
            num_train_conversations=len(train_loader.dataset),
            num_val_conversations=len(val_loader.dataset),
            total_steps=total_steps,
            first_step=trainer.global_step,
            num_parameters=sum(p.numel() for p in draft.model.parameters()),
            num_trainable=sum(p.numel() for p in draft.model.parameters() if p.requires_grad),
            draft_vocab_coverage=draft.draft_vocab_coverage,
            num_parent_tensors=draft.num_parent_tensors,
        )
    )
    return trainer


def speculators_config(job: TrainJob, machine: Machine) -> SpeculatorsConfig:
    """The same training in speculators' own words."""
    config = job.config
    loss = config.loss if isinstance(config.loss, str) else json.dumps(config.loss)
    values = config.model_dump(
        include={
            "seed", "total_seq_len", "ttt_steps", "ttt_step_loss_decay", "optimizer", "lr",
            "weight_decay", "muon_lr", "epochs", "max_steps", "checkpoint_freq",
            "gradient_checkpointing",
        }
    )  # fmt: skip
    values |= {
        "speculator_type": "eagle3",
        "verifier_name_or_path": str(job.verifier_path),
        "from_pretrained": str(job.draft_config_dir),
        "target_layer_ids": list(job.aux_layer_ids),
        "draft_vocab_size": job.draft_vocab_size,
        "draft_attn_impl": machine.attention,
        "data_path": str(tokens_dir(job)),
        "train_data_ratio": 1 - config.val_ratio,
        "hidden_states_dtype": machine.dtype,
        "num_workers": machine.num_workers,
        "on_missing": "generate" if config.states_endpoint else "raise",
        "vllm_endpoint": f"{config.states_endpoint}/v1",
        "loss_fn": loss,
        "loss_implementation": machine.loss_implementation,
        "scheduler_type": config.scheduler,
        "scheduler_warmup_ratio": config.warmup_ratio,
        "log_freq": config.log_every_steps,
        "fsdp_shard": config.sharding == "fsdp",
        "save_path": str(job.save_dir),
    }
    return SpeculatorsConfig.from_flat(values)


def tokens_dir(job: TrainJob) -> Path:
    """The corpus, or the copy of its first rows that `limit_tokens` makes."""
    return job.tokens_dir if job.max_conversations is None else job.save_dir.parent / "tokens"


def limit_tokens(job: TrainJob) -> None:
    """Copies the corpus's first rows, where the job is for no more of them."""
    if job.max_conversations is not None:
        rows = load_from_disk(job.tokens_dir)
        rows.select(range(min(job.max_conversations, len(rows)))).save_to_disk(tokens_dir(job))


def build_loaders(
    settings: SpeculatorsConfig, job: TrainJob, model: Eagle3DraftModel
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Packed batches of the corpus: all but its last rows, and those."""
    values = settings.flatten()
    names = (
        "data_path", "total_seq_len", "vllm_endpoint", "on_missing", "verifier_name_or_path",
        "request_timeout", "max_retries", "generation_validation_retries",
        "max_consecutive_generation_failures", "num_workers", "prefetch_factor",
        "train_data_ratio", "seed",
    )  # fmt: skip
    dtype = getattr(torch, values["hidden_states_dtype"])
    loaders: tuple[DataLoader[Any], DataLoader[Any]] = create_train_val_loaders(
        **{name: values[name] for name in names if name != _MODEL},
        # A server of hidden states has one model, under a name of its own.
        verifier_name_or_path=None if job.config.states_endpoint else values[_MODEL],
        hidden_states_dtype=dtype,
        transfer=FP8Transfer(job.hidden_states_dir, dtype),  # reads unquantised files, too
        hidden_size=model.hidden_size,
        num_target_layers=len(job.aux_layer_ids),
        preprocess=shift_batch,
    )
    if job.config.noise:
        loaders[0].collate_fn = Noisy(loaders[0].collate_fn, job.config.noise)
    return loaders


class Noisy:
    """Adds uniform noise to the aux hidden states of a packed batch; a class, for workers."""

    def __init__(self, collate: Callable[[Any], dict[str, torch.Tensor]], width: float) -> None:
        self._collate = collate
        self._width = width

    def __call__(self, samples: Any) -> dict[str, torch.Tensor]:
        """The batch of these samples, noise on."""
        batch = self._collate(samples)
        states = batch["hidden_states"]
        batch["hidden_states"] = states + (torch.rand_like(states) - 0.5) * self._width
        return batch


def plan_steps(loader: DataLoader[Any], job: TrainJob) -> tuple[int, int]:
    """Steps and epochs of the whole training; packing makes epochs of different lengths.

    speculators goes on with one step per further epoch after max_steps, so the epochs end there.
    """
    total, limit = 0, job.config.max_steps
    sampler: Any = loader.batch_sampler
    for epoch in range(job.config.epochs):
        sampler.set_epoch(epoch)
        total += len(sampler)
        if limit is not None and total >= limit:
            return limit, epoch + 1
    return total, job.config.epochs


def trainer_config(settings: SpeculatorsConfig, total_steps: int, epochs: int) -> TrainerConfig:
    """The trainer's own settings, with a schedule that ends where the training ends."""
    values = settings.flatten()
    calls = {
        "ttt_steps": values["ttt_steps"],
        "ttt_step_loss_decay": values["ttt_step_loss_decay"],
        "loss_config": resolve_loss_config(values["loss_fn"], values["loss_implementation"]),
    }
    values |= {
        "num_epochs": epochs,
        "resume_from_checkpoint": True,
        "train_call_kwargs": calls,
        "val_call_kwargs": calls,
        "scheduler_total_steps": total_steps,
        "hidden_states_dtype": getattr(torch, values["hidden_states_dtype"]),
    }
    return TrainerConfig(**{name: values[name] for name in TrainerConfig._fields})
