"""Whether the engines of a measurement take turns or follow each other."""

from pathlib import Path
from typing import Literal

from eval.device import available_bytes, engine_bytes
from eval.engine import Engine
from eval.environment import idle_cpu_share
from eval.files import write_atomic
from eval.machinequeue import MachineQueue
from eval.plan import BASELINE_ARM
from eval.spec import BenchSpec, Frozen
from eval.speedup import load_statistics


class Pairing(Frozen):
    """The order of a measurement."""

    order: Literal["interleaved", "bracketed"]
    idle_cost: float | None = None
    """Share of the CPU that an idle engine takes; None where it was not measured."""


def recall_pairing(
    spec: BenchSpec, baseline: Engine, out_dir: Path, queue: MachineQueue
) -> Pairing:
    """The order that was chosen when this measurement began, else one chosen now.

    Args:
        spec: The measurement.
        baseline: The verifier's engine; started where its idle cost must be known.
        out_dir: The measurement's folder, where the choice is kept.
        queue: Waited for before a start.
    """
    path = out_dir / "pairing.json"
    if path.exists():
        return Pairing.model_validate_json(path.read_bytes())
    choice = _choose(spec, baseline, queue)
    write_atomic(path, choice.model_dump_json())
    return choice


def _choose(spec: BenchSpec, baseline: Engine, queue: MachineQueue) -> Pairing:
    if spec.pairing != "auto":
        return Pairing(order=spec.pairing)
    server = spec.server
    if server.port is not None:  # two engines cannot share it
        return Pairing(order="bracketed")
    available = available_bytes()
    if server.device != "cpu" or available is None or available < 2 * engine_bytes(server):
        return Pairing(order="bracketed")
    with queue.starting():
        pid = baseline.serve(BASELINE_ARM).pid
        load_statistics()  # now, since the engine must come to rest anyway
        cost = idle_cpu_share(pid, baseline.last_used_s)
    is_cheap = cost < spec.max_idle_cost
    return Pairing(order="interleaved" if is_cheap else "bracketed", idle_cost=cost)
