"""Where trials run on this machine: a slot has `nproc` GPUs or shares them, or some cores."""

import os

from harness.config.load import Frozen
from harness.drafter.gpus import read_gpus
from harness.errors import ConfigError
from harness.settings import visible_gpus


class Slot(Frozen):
    """Room for one trial at a time."""

    name: str
    environment: dict[str, str]
    gpu: str | None = None
    num_sharing: int = 1
    """Trials on this GPU at once."""


def find_slots(
    workers: int | None, *, is_cpu: bool, nproc: int = 1, per_gpu: int = 1
) -> tuple[Slot, ...]:
    """The slots of this machine.

    Args:
        workers: Trials at once; None: as many as the visible GPUs let, one on a CPU.
        is_cpu: Trials leave GPUs alone.
        nproc: GPUs of a trial.
        per_gpu: Trials that share these GPUs.

    Raises:
        ConfigError: More workers than GPUs for them.
    """
    gpus = () if is_cpu else visible_gpus()
    if not gpus:
        count = workers or 1
        threads = max(len(os.sched_getaffinity(0)) // count, 1)
        limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        return tuple(Slot(name=f"cpu{index}", environment=limits) for index in range(count))
    most = len(gpus) // nproc * per_gpu
    if (workers or 1) > most:
        raise ConfigError(
            f"workers: expected at most {most}, with {nproc} of {len(gpus)} visible GPUs for each "
            f"trial and {per_gpu} trials on each GPU, found {workers or 1}",
            "show more GPUs in CUDA_VISIBLE_DEVICES, raise trials_per_gpu, or lower workers or "
            "nproc",
        )
    groups = [",".join(gpus[i : i + nproc]) for i in range(0, len(gpus) - nproc + 1, nproc)]
    places = [(group, turn) for turn in range(per_gpu) for group in groups][: workers or most]
    return tuple(
        Slot(
            name=f"gpu{group}.{turn}" if turn else f"gpu{group}",
            environment={"CUDA_VISIBLE_DEVICES": group},
            gpu=group,
            num_sharing=per_gpu,
        )
        for group, turn in places
    )


def busy_reason(slot: Slot, num_beside: int = 0) -> str | None:
    """Why a trial should not be started on a GPU now; None when nothing speaks against it.

    Half of the GPU must be free, or of what the trials of this sweep that run on it leave.

    Args:
        slot: Where it would run.
        num_beside: Trials of this sweep that run on its GPU.
    """
    share = 1 - num_beside / slot.num_sharing
    found = read_gpus(slot.gpu) if slot.gpu else ()
    busy = [gpu for gpu in found if not gpu.has_room(share)]
    if not busy:
        return None
    free, total = busy[0].free_bytes / 1e9, busy[0].total_bytes / 1e9
    return f"GPU {busy[0].index} has {free:.1f} of {total:.1f} GB free: another uses it"
