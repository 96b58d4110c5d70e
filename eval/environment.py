"""Where a measurement was made: versions and hardware, recorded with every result."""

import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path

import psutil

from eval.compat import VLLM_DISTRIBUTIONS
from eval.spec import ServerSpec

SPIN_S = 1.05
"""How long an engine is not yet idle after its last step: its processes wait for messages in a busy
loop of 1 s first. Source: vLLM distributed/device_communicators/shm_broadcast.py, 0.32."""

_CORES_PER_PROCESS = 2
"""Its own, and one for the threads that it starts now and then; with fewer we rather wait."""
_NUM_FRONT = 2
"""Processes of an engine beside its workers: the API server and the scheduler."""

SYNTHETIC_KEY = "harness_synthetic"
"""In a verifier's config.json: it was made to cost more than it knows, and how."""

_DISTRIBUTIONS = (*VLLM_DISTRIBUTIONS, "torch", "transformers", "numpy", "scipy", "aiohttp")


def describe_environment(server: ServerSpec) -> dict[str, str]:
    """Versions, processor, memory and GPUs of this machine, as text by name.

    A synthetic verifier is named, too: no figure of it is one of the model whose name it has.
    """
    made = read_synthetic(server.verifier)
    return {
        **describe_machine(),
        **({"synthetic_verifier": made} if made else {}),
        "dtype": str(server.dtype),
        "tensor_parallel_size": str(server.tensor_parallel_size),
        "data_parallel_size": str(server.data_parallel_size),
        "expert_parallel": str(server.enable_expert_parallel),
    }


def read_synthetic(verifier: Path) -> str | None:
    """How a synthetic verifier was made, as text; None for a real one."""
    path = verifier / "config.json"
    try:
        made = json.loads(path.read_text()).get(SYNTHETIC_KEY)
    except (OSError, ValueError, AttributeError):
        return None  # vLLM says what is wrong with it
    return json.dumps(made, sort_keys=True) if made else None


def describe_machine() -> dict[str, str]:
    """The same without a server."""
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "num_cpus": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(psutil.virtual_memory().total),
    }
    for name in _DISTRIBUTIONS:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpus = [_gpu_model(path) for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*"))]
    return {**facts, **({"gpus": ", ".join(gpus)} if gpus else {})}


def idle_cpu_share(pid: int | None, last_used_s: float, seconds: float = 1.0) -> float:
    """Share of this machine's CPU time that an engine takes while nothing is asked of it.

    Args:
        pid: The engine's supervisor.
        last_used_s: Monotonic clock when it was last asked something.
        seconds: How long to watch it.
    """
    root = psutil.Process(pid)
    rest_until(last_used_s + SPIN_S)
    before = _cpu_seconds(root)
    time.sleep(seconds)
    return (_cpu_seconds(root) - before) / seconds / len(os.sched_getaffinity(0))


def rest_s(server: ServerSpec) -> float:
    """Seconds for which an engine disturbs the next one after its last step.

    0 where GPUs compute and each process of both has cores of its own: one that waits in a busy
    loop then takes nothing from another.
    """
    num_processes = server.data_parallel_size * (server.tensor_parallel_size + _NUM_FRONT)
    has_room = len(os.sched_getaffinity(0)) >= 2 * _CORES_PER_PROCESS * num_processes
    return 0.0 if server.device == "cuda" and has_room else SPIN_S


def rest_until(monotonic_s: float) -> None:
    """Waits until a time of the monotonic clock; not at all when it has passed."""
    time.sleep(max(monotonic_s - time.monotonic(), 0.0))


class ForeignLoad:
    """Watches how much of this machine's CPU others take while an engine is measured.

    Args:
        pid: The engine's supervisor; it, its descendants and this process are not others.
    """

    def __init__(self, pid: int | None) -> None:
        self._root = psutil.Process(pid)
        self._started = time.monotonic()
        self._busy_s, self._own_s = _busy_seconds(), self._own_seconds()

    def share(self) -> float:
        """Since the start of the watch: CPU seconds of others per CPU second there was."""
        busy_s = _busy_seconds() - self._busy_s
        foreign_s = busy_s - (self._own_seconds() - self._own_s)
        there_was_s = (time.monotonic() - self._started) * len(os.sched_getaffinity(0))
        return float(max(foreign_s, 0.0) / there_was_s)

    def _own_seconds(self) -> float:
        own = psutil.Process().cpu_times()
        return _cpu_seconds(self._root) + float(own.user + own.system)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def _cpu_seconds(root: psutil.Process) -> float:
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _gpu_model(folder: Path) -> str:
    for line in (folder / "information").read_text().splitlines():
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return "unknown NVIDIA GPU"
