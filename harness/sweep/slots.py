"""Where trials run on this machine: one slot a GPU, or a share of the cores."""

import os

from harness.config.load import Frozen
from harness.drafter.gpus import read_gpus
from harness.errors import ConfigError
from harness.settings import visible_gpus

_BUSY_SHARE = 0.5
"""Of a GPU's memory that must be free for a trial to be started on it."""


class Slot(Frozen):
    """Room for one trial at a time."""

    name: str
    environment: dict[str, str]
    gpu: str | None = None


def find_slots(workers: int | None, *, is_cpu: bool) -> tuple[Slot, ...]:
    """The slots of this machine.

    Args:
        workers: Trials at once; None: one for each visible GPU, one on a CPU.
        is_cpu: Trials leave GPUs alone.

    Raises:
        ConfigError: More workers than GPUs.
    """
    gpus = () if is_cpu else visible_gpus()
    if not gpus:
        count = workers or 1
        threads = max(len(os.sched_getaffinity(0)) // count, 1)
        limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        return tuple(Slot(name=f"cpu{index}", environment=limits) for index in range(count))
    if workers is not None and workers > len(gpus):
        raise ConfigError(
            f"workers: expected at most {len(gpus)}, one for each visible GPU, found {workers}",
            "show more GPUs in CUDA_VISIBLE_DEVICES, or lower workers",
        )
    return tuple(
        Slot(name=f"gpu{gpu}", environment={"CUDA_VISIBLE_DEVICES": gpu}, gpu=gpu)
        for gpu in gpus[: workers or len(gpus)]
    )


def busy_reason(slot: Slot) -> str | None:
    """Why a trial should not be started on a GPU now; None when nothing speaks against it."""
    found = read_gpus(slot.gpu) if slot.gpu else ()
    if not found or found[0].free_bytes >= _BUSY_SHARE * found[0].total_bytes:
        return None
    free, total = found[0].free_bytes / 1e9, found[0].total_bytes / 1e9
    return f"GPU {slot.gpu} has {free:.1f} of {total:.1f} GB free: another uses it"
