"""NVIDIA GPUs as the driver tells of them: memory, and which processes hold it. Without torch."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from harness.config.load import Frozen
from harness.settings import child_environment

_QUERY_TIMEOUT_S = 10.0
_MIB = 1 << 20
_GPU = ("index", "uuid", "name", "memory.free", "memory.total")
_PROCESS = ("gpu_uuid", "pid", "used_memory")
FREE_SHARE = 0.5
"""Of a GPU's memory that must be free for work to be begun on it."""


class GpuHolder(Frozen):
    """A process with memory on a GPU."""

    pid: int
    name: str
    num_bytes: int


class Gpu(Frozen):
    """One GPU."""

    index: str
    uuid: str
    name: str
    free_bytes: int
    total_bytes: int
    holders: tuple[GpuHolder, ...] = ()

    def has_room(self, share: float = 1.0) -> bool:
        """Whether work may be begun on it.

        Args:
            share: Of the GPU, for what is begun now; the rest is held by those that it belongs to.
        """
        return self.free_bytes >= FREE_SHARE * share * self.total_bytes


def read_gpus(only: str | None = None) -> tuple[Gpu, ...]:
    """The GPUs of this machine, or one of them; none where nvidia-smi does not say.

    Args:
        only: Index or UUID, as CUDA_VISIBLE_DEVICES names it.
    """
    select = (f"--id={only}",) if only else ()
    rows = ask_driver("--query-gpu", _GPU, *select)
    processes = ask_driver("--query-compute-apps", _PROCESS, *select) if rows else []
    gpus = []
    for index, uuid, name, free, total in rows:
        held = [(int(pid), _mib(used)) for on, pid, used in processes if on == uuid]
        holders = tuple(GpuHolder(pid=pid, name=_name(pid), num_bytes=used) for pid, used in held)
        gpus.append(
            Gpu(
                index=index, uuid=uuid, name=name, free_bytes=_mib(free), total_bytes=_mib(total),
                holders=tuple(h for h in holders if h.pid != os.getpid()),
            )
        )  # fmt: skip
    return tuple(gpus)


def ask_driver(
    query: str, columns: Sequence[str], *select: str, timeout_s: float = _QUERY_TIMEOUT_S
) -> list[list[str]]:
    """Rows of a query of nvidia-smi, a cell a column; none where it does not answer.

    Args:
        query: `--query-gpu` or `--query-compute-apps`.
        columns: As `nvidia-smi --help-query-gpu` names them.
        select: Further flags.
        timeout_s: How long it may take.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(
            [
                "nvidia-smi",
                *select,
                f"{query}={','.join(columns)}",
                "--format=csv,noheader,nounits",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=timeout_s,
            env=child_environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(columns)]


def _mib(text: str) -> int:
    """Bytes; 0 where the driver does not say, which it may of processes of another container."""
    return int(text) * _MIB if text.isdigit() else 0


def _name(pid: int) -> str:
    """The program of a process; its id where that is hidden from us."""
    try:
        return Path(psutil.Process(pid).name()).name
    except psutil.Error:
        return f"process {pid}"
