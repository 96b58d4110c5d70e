"""Which arms share an engine: drafters of one architecture, when they may be changed in place."""

from eval.architecture import find_differences
from eval.plan import Arm, Session, build_arms
from eval.spec import BenchSpec


def build_sessions(spec: BenchSpec) -> tuple[Session, ...]:
    """One session for each K and group of arms that one engine can host in turn.

    Raises:
        SpecError: A drafter's folder has no readable config.json or safetensors.
    """
    sessions: list[Session] = []
    # Of several engines behind one port, a call to change the drafter may reach only one.
    is_swapping = spec.is_swapping and spec.server.data_parallel_size == 1
    for k in spec.k:
        groups: list[list[Arm]] = []
        for arm in build_arms(spec, k):
            host = next((g for g in groups if is_swapping and _can_join(g[0], arm)), None)
            if host is None:
                groups.append([arm])
            else:
                host.append(arm)
        sessions += [
            Session(name=f"k{k}-{index}", arms=tuple(group)) for index, group in enumerate(groups)
        ]
    return tuple(sessions)


def _can_join(host: Arm, arm: Arm) -> bool:
    if host.drafter is None or arm.drafter is None:
        return False
    return not find_differences(host.drafter.path, arm.drafter.path)
