"""Shares of a Ray cluster: how large one is, and the actor that holds it on some host."""

from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.errors import PrerequisiteError
from harness.launch.ray_place import Place

SLOT = "slot"
"""The resource that a host may declare for tasks without a GPU: `ray start --resources`."""


class Shape(NamedTuple):
    """What a task takes of one host."""

    num_cpus: int
    num_gpus: int
    num_slots: int
    is_gang: bool
    """Several GPUs or a whole host: reserved together, as a placement group on one host."""


class Lease:
    """A share of a host while somebody works in it, or may soon."""

    def __init__(self, shape: Shape, marker: Path) -> None:
        self.shape = shape
        self._group: PlacementGroup | None = None
        resources = {SLOT: shape.num_slots} if shape.num_slots else {}
        strategy: Any = "SPREAD"
        if shape.is_gang:
            amounts = {"CPU": shape.num_cpus, "GPU": shape.num_gpus, **resources}
            bundle = {name: float(amount) for name, amount in amounts.items() if amount}
            self._group = placement_group([bundle], strategy="STRICT_PACK")
            strategy = PlacementGroupSchedulingStrategy(self._group, 0)
        # GPUs are asked for again inside the group: else CUDA_VISIBLE_DEVICES is empty, ray#50180.
        options = {
            "num_cpus": shape.num_cpus,
            "num_gpus": shape.num_gpus,
            "resources": resources,
            "scheduling_strategy": strategy,
            "max_restarts": 0,
        }
        self.place = ray.remote(Place).options(**options).remote()
        self.facts = self.place.describe.remote(marker)

    def end(self) -> None:
        """Gives the share back."""
        ray.kill(self.place)
        if self._group is not None:
            remove_placement_group(self._group)


def shape_of(num_gpus: int, *, is_alone: bool) -> Shape:
    """What a task takes: its GPUs and their part of a host's cores; a slot; a host.

    Raises:
        PrerequisiteError: No host of the cluster is large enough.
    """
    hosts = _hosts()
    fitting = [host for host in hosts if host.get("GPU", 0) >= num_gpus]
    if not fitting:
        most = max((int(host.get("GPU", 0)) for host in hosts), default=0)
        raise PrerequisiteError(
            f"expected a host with {num_gpus} GPUs in the Ray cluster, the largest has {most}",
            "lower nproc or tensor_parallel_size, or add a host",
        )
    if is_alone:
        host = max(fitting, key=lambda host: (host.get("GPU", 0), host.get("CPU", 0)))
        cores, gpus, slots = (int(host.get(name, 0)) for name in ("CPU", "GPU", SLOT))
        return Shape(cores, gpus, slots, is_gang=True)
    if num_gpus:
        cores = min(int(host.get("CPU", 1) * num_gpus / host["GPU"]) for host in fitting)
        return Shape(max(cores, 1), num_gpus, 0, is_gang=num_gpus > 1)
    slotted = [host for host in hosts if host.get(SLOT)]
    if not slotted:
        return Shape(1, 0, 0, is_gang=False)
    cores = min(int(host.get("CPU", 1) / host[SLOT]) for host in slotted)
    return Shape(max(cores, 1), 0, 1, is_gang=False)


def count_places(num_gpus: int) -> int:
    """How many tasks of so many GPUs the living hosts have room for, all else idle; maybe none."""
    try:
        shape = shape_of(num_gpus, is_alone=False)
    except PrerequisiteError:
        return 0
    wanted = {"CPU": shape.num_cpus, "GPU": shape.num_gpus, SLOT: shape.num_slots}
    return sum(
        min(int(host.get(name, 0) // amount) for name, amount in wanted.items() if amount)
        for host in _hosts()
    )


def _hosts() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
