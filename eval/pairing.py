"""Whether the engines of a measurement take turns or follow each other."""

from pathlib import Path
from typing import Literal

from eval.device import available_bytes, engine_bytes
from eval.engine import Engine
from eval.environment import idle_cpu_share
from eval.files import write_atomic
from eval.fleet import Fleet
from eval.plan import BASELINE_ARM
from eval.spec import BenchSpec, Frozen


class Pairing(Frozen):
    """The order of a measurement."""

    order: Literal["interleaved", "bracketed"]
    idle_cost: float | None = None
    """Share of the CPU that an idle engine takes; None where it was not measured."""


def recall_pairing(spec: BenchSpec, baseline: Engine, out_dir: Path, fleet: Fleet) -> Pairing:
    """The order that was chosen when this measurement began, else one chosen now.

    Args:
        spec: The measurement.
        baseline: The verifier's engine; started where its idle cost must be known.
        out_dir: The measurement's folder, where the choice is kept.
        fleet: Starts it.
    """
    path = out_dir / "pairing.json"
    if path.exists():
        return Pairing.model_validate_json(path.read_bytes())
    choice = _choose(spec, baseline, fleet)
    write_atomic(path, choice.model_dump_json())
    return choice


def _choose(spec: BenchSpec, baseline: Engine, fleet: Fleet) -> Pairing:
    if spec.pairing != "auto":
        return Pairing(order=spec.pairing)
    server = spec.server
    if server.port is not None:  # two engines cannot share it
        return Pairing(order="bracketed")
    available = available_bytes()
    if server.device != "cpu" or available is None or available < 2 * engine_bytes(server):
        return Pairing(order="bracketed")
    fleet.start({baseline: BASELINE_ARM})
    cost = idle_cpu_share(baseline.serve(BASELINE_ARM).pid, baseline.last_used_s)
    is_cheap = cost < spec.max_idle_cost
    return Pairing(order="interleaved" if is_cheap else "bracketed", idle_cost=cost)
