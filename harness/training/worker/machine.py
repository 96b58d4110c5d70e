"""What the child runs on, after every `auto` is settled.

Where there is no accelerator, three places of speculators 0.9.0 that assume one are replaced, in
this process only: the trainer's rank, its synchronisation, the device that checkpoints load to.
"""

import os
import resource
from typing import NamedTuple

import torch
from speculators.train import checkpointer as speculators_checkpointer
from speculators.train import trainer as speculators_trainer

from harness.config.train import TrainConfig

_GPU_WORKERS = 4


class Machine(NamedTuple):
    """What this process runs on and with, after every `auto` is settled."""

    device: str
    attention: str
    loss_implementation: str
    dtype: str
    num_workers: int


def find_machine(config: TrainConfig) -> Machine:
    """Settles every `auto` by the accelerator that torch sees, and patches where there is none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        torch.accelerator.synchronize = lambda *_args, **_options: None
        speculators_trainer.get_local_rank = lambda: "cpu"
        speculators_checkpointer.get_current_device = lambda: "cpu"
    name = str(found) if found else "cpu"
    best = {
        "attention": "simple_flex_attention" if found else "sdpa",
        "dtype": "bfloat16" if found else "float32",
        "loss_implementation": "eager",
    }
    asked = config.model_dump(include=set(best))
    picked = {key: best[key] if asked[key] == "auto" else asked[key] for key in best}
    default_workers = min(_GPU_WORKERS, os.cpu_count() or 1) if found else 0
    workers = default_workers if config.num_workers is None else config.num_workers
    return Machine(device=name, num_workers=workers, **picked)


def peak_memory_bytes() -> int:
    """Highest memory of the accelerator, else the highest resident memory of this process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
