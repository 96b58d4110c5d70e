"""Closes runs that nobody works on: RUNNING in the store, their process gone.

Whoever opens a run does it first, so that a command killed outright leaves no RUNNING run behind
for longer than until the next one; `harness doctor --reap` does it at once.
"""

import time
from collections.abc import Callable
from typing import Literal

from harness.config.load import Frozen
from harness.tracking import names
from harness.tracking.owner import Owner, is_alive
from harness.tracking.records import RunStatus, RunSummary
from harness.tracking.store import Store

_LOOK_S = 3.0
_NUM_LOOKS = 15
"""45 s in all: a host that is cut off asks its task to stop after 20 s (`launch.ray_place`)."""

Verdict = Literal["alive", "gone", "elsewhere", "unknown"]


class OpenRun(Frozen):
    """A run that is RUNNING, and what is known of the process it belongs to."""

    run_id: str
    name: str
    verdict: Verdict
    """elsewhere: on another host, which only `doctor` there can ask; unknown: not ours."""
    owner: str
    heartbeat: str | None
    model_inputs: tuple[str, ...]
    """Model ids of the checkpoints that it works on."""


def open_runs(store: Store) -> tuple[OpenRun, ...]:
    """All RUNNING runs, newest first."""
    return tuple(_judge(run) for run in store.find_runs(status=RunStatus.RUNNING))


def reap(store: Store) -> tuple[OpenRun, ...]:
    """Marks the runs whose process is gone KILLED, and returns them."""
    gone = tuple(run for run in open_runs(store) if run.verdict == "gone")
    for run in gone:
        reason = f"its process ({run.owner}) ended without closing it"
        store.attach_run(run.run_id).finish(RunStatus.KILLED, reason=reason)
    return gone


def settle_task(store: Store, task_id: str, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Ends the runs of a launched task whose host was lost; whether one of them is finished.

    A process that was only cut off stops by itself and closes its run, so that is waited for.
    """
    wanted = {names.TAG_TASK: task_id}
    for _ in range(_NUM_LOOKS):
        if not store.find_runs(tags=wanted, status=RunStatus.RUNNING):
            break
        sleep(_LOOK_S)
    for run in store.find_runs(tags=wanted, status=RunStatus.RUNNING):
        reason = "its host or the cluster went away"
        store.attach_run(run.run_id).finish(RunStatus.KILLED, reason=reason)
    finished = store.find_runs(tags=wanted, status=RunStatus.FINISHED)
    return any(run.kind != names.KIND_SMOKE for run in finished)


def _judge(run: RunSummary) -> OpenRun:
    owner = owner_of(run)
    spoken = f"pid {owner.pid} on {owner.host}" if owner else "no owner recorded"
    return OpenRun(
        run_id=run.run_id,
        name=run.name,
        verdict=_verdict(owner) if owner else "unknown",
        owner=spoken,
        heartbeat=run.tags.get(names.TAG_HEARTBEAT),
        model_inputs=run.model_inputs,
    )


def _verdict(owner: Owner) -> Verdict:
    alive = is_alive(owner)
    if alive is None:
        return "elsewhere"
    return "alive" if alive else "gone"


def owner_of(run: RunSummary) -> Owner | None:
    """The process that a run's tags name; None for a run that harness did not start."""
    tags = run.tags
    pid = tags.get(names.TAG_PID, "")
    if names.TAG_HOST not in tags or not pid.isdecimal():
        return None
    return Owner(
        host=tags[names.TAG_HOST],
        boot_id=tags.get(names.TAG_BOOT_ID, ""),
        pid=int(pid),
        started=tags.get(names.TAG_PROCESS_START, ""),
    )
