"""The process that holds a Ray cluster for a launcher: `python -m harness.launch.ray_driver`.

A process of its own, because Ray ends the process that is connected to it when the cluster goes
away. Orders come as JSON lines on stdin, what becomes of them goes to stdout; when stdin closes,
tasks are asked to stop and everything is given back.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    AuthenticationError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)

from harness.errors import PrerequisiteError
from harness.launch.hosts import HostFacts, Hosts, Wanted
from harness.launch.ports import Task
from harness.launch.ray_lease import Lease, Shape, count_places, shape_of
from harness.launch.ray_place import Seen
from harness.launch.ray_words import (
    ADMISSION_HINT,
    ORDER,
    Connected,
    Count,
    Ended,
    Launch,
    Lost,
    Order,
    Places,
    Refused,
    Word,
)

_GONE = (RayActorError, OutOfMemoryError, RuntimeEnvSetupError, ActorUnschedulableError)
"""Why an actor is no more; what Ray says of its death is not always an actor's error."""
_POLL_S = 0.05
_CHECK_S = 5.0
_IDLE_S = 2.0
"""For which a share of a host is kept for the next task: an actor takes a second to start."""
_LEAVE_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}
"""Ray kills the children of an actor that ends, but not theirs. Ours have a supervisor, which asks
tasks to save, and reaches all of them; it must not be killed before."""
_LAST_WORDS_S = 60.0
"""For tasks to save what they can when nobody listens any more."""


class Running:
    """A task that has a lease, or waits for one."""

    def __init__(self, task: Task, lease: Lease) -> None:
        self.task, self.lease = task, lease
        self.pending: ray.ObjectRef[Any] | None = lease.facts
        self.next_look = 0.0
        self.is_started = self.is_seen = False
        self.log_offset = self.result_offset = 0


class Driver:
    """Runs tasks on the cluster that this process is connected to.

    Args:
        wanted: What hosts must be like.
        say: Tells the launcher.
    """

    def __init__(self, wanted: Wanted, say: Callable[[Word], None]) -> None:
        self._wanted, self._say = wanted, say
        self._running: dict[str, Running] = {}
        self._idle: list[tuple[float, Lease]] = []
        self._hosts = Hosts(wanted)
        self._next_check = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a task waits or runs."""
        return bool(self._running)

    def obey(self, order: Order) -> None:
        """Takes an order.

        Raises:
            PrerequisiteError: No host is large enough.
        """
        if isinstance(order, Count):
            self._say(Places(count=count_places(order.num_gpus)))
        elif isinstance(order, Launch):
            task = order.task
            shape = shape_of(task.num_gpus, is_alone=task.is_alone)
            self._running[task.id] = Running(task, self._take_lease(shape))
        else:
            self._stop(order.id, is_now=order.is_now)

    def stop_all(self) -> None:
        """Asks every task to save and stop."""
        for id_ in list(self._running):
            self._stop(id_, is_now=False)

    def work(self) -> None:
        """One look at every task, none of which is waited for.

        Raises:
            PrerequisiteError: A host is not what it must be.
        """
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_S
            ray.nodes()  # ends this process where another head has taken the place of ours
            self._fit_waiting()
        for running in list(self._running.values()):
            if running.pending is None and now >= running.next_look:
                offsets = running.log_offset, running.result_offset
                running.pending = running.lease.place.look.remote(*offsets)
            elif running.pending is not None and ray.wait([running.pending], timeout=0)[0]:
                self._take(running)
        for expires, lease in list(self._idle):
            if now >= expires:
                self._idle.remove((expires, lease))
                lease.end()

    def _fit_waiting(self) -> None:
        """Asks anew for room where the largest host, which a task waits for, is another now."""
        for running in [running for running in self._running.values() if not running.is_started]:
            with contextlib.suppress(PrerequisiteError):  # such a host may come back
                shape = shape_of(running.task.num_gpus, is_alone=running.task.is_alone)
                if shape != running.lease.shape:
                    running.lease.end()
                    running.lease = self._take_lease(shape)
                    running.pending = running.lease.facts

    def _take(self, running: Running) -> None:
        task, lease = running.task, running.lease
        pending, running.pending = running.pending, None
        try:
            found = ray.get(pending)
        except ActorUnavailableError as error:  # the network hiccuped; Ray says when a host is gone
            if not running.is_started:
                running.pending = lease.place.describe.remote(self._wanted.marker)
            elif not running.is_seen:  # nobody knows whether it was begun
                self._lose(running, str(error))
        except _GONE as error:
            self._lose(running, str(error))
        except RayTaskError as error:
            self._drop(running)
            with task.log_path.open("a", encoding="utf-8") as log:
                log.write(f"it could not be started: {error}\n")
            self._say(Ended(id=task.id, code=1))
        else:
            self._answer(running, found)

    def _answer(self, running: Running, found: object) -> None:
        lease = running.lease
        if isinstance(found, HostFacts):
            self._hosts.require_fit(found)
            running.pending = lease.place.start.remote(running.task)
            running.is_started = True
        elif isinstance(found, Seen):
            self._copy(running, found)
            running.is_seen = True
            running.next_look = time.monotonic() + (0 if found.log or found.result else _POLL_S)
            if found.code and found.is_left:
                self._lose(running, "it could not be looked at, and stopped")
            elif found.code is not None:
                self._finish(running, found.code)

    def _drop(self, running: Running) -> None:
        del self._running[running.task.id]
        running.lease.end()

    def _lose(self, running: Running, why: str) -> None:
        """Tells that a task is no more, which is no fault of its own."""
        self._drop(running)
        first = (why.strip() or "it is gone").splitlines()[0]
        with running.task.log_path.open("a", encoding="utf-8") as log:
            log.write(f"its host was lost: {first}\n")
        self._say(Lost(id=running.task.id, why=first))

    def _finish(self, running: Running, code: int) -> None:
        del self._running[running.task.id]
        running.lease.place.end.remote()
        running.lease.facts = running.lease.place.describe.remote(self._wanted.marker)
        self._idle.append((time.monotonic() + _IDLE_S, running.lease))
        self._say(Ended(id=running.task.id, code=code))

    def _copy(self, running: Running, seen: Seen) -> None:
        task = running.task
        for path, text in ((task.log_path, seen.log), (task.result_path, seen.result)):
            if path is not None and text:
                with path.open("ab") as stream:
                    stream.write(text)
        running.log_offset += len(seen.log)
        running.result_offset += len(seen.result)

    def _stop(self, id_: str, *, is_now: bool) -> None:
        running = self._running.get(id_)
        if running is None:
            return
        if running.is_started:
            running.lease.place.stop.remote(is_now)
        else:  # it waits for room
            self._drop(running)
            self._say(Ended(id=id_, code=130))

    def _take_lease(self, shape: Shape) -> Lease:
        """One that is idle and of this shape; those of another are given back to make room."""
        same = [entry for entry in self._idle if entry[1].shape == shape]
        for entry in [entry for entry in self._idle if entry not in same]:
            self._idle.remove(entry)
            entry[1].end()
        if same:
            self._idle.remove(same[0])
            return same[0][1]
        return Lease(shape, self._wanted.marker)


def main() -> int:
    """Serves one launcher until it is gone; 1 when the cluster went away."""
    say = _speaker()
    lines = _lines()
    wanted = Wanted.model_validate_json(next(line for line in lines if line))
    try:
        ray.init(
            address=wanted.address,
            log_to_driver=False,
            logging_level="warning",
            runtime_env={
                "working_dir": str(wanted.code_dir),
                "env_vars": _LEAVE_CHILDREN,
            },
        )
        say(Connected())
        _serve(Driver(wanted, say), lines, say)
    except AuthenticationError as error:
        say(Refused(message=f"Ray at {wanted.address}: {error.message}", hint=ADMISSION_HINT))
    except (RayError, ConnectionError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _serve(driver: Driver, lines: Iterator[bytes | None], say: Callable[[Word], None]) -> None:
    try:
        for line in lines:
            if line:
                driver.obey(ORDER.validate_json(line))
            driver.work()
    except PrerequisiteError as error:
        say(Refused(message=error.message, hint=error.hint))
    driver.stop_all()
    deadline = time.monotonic() + _LAST_WORDS_S
    while driver.is_busy and time.monotonic() < deadline:
        with contextlib.suppress(PrerequisiteError):  # that was said
            driver.work()
        time.sleep(_POLL_S)


def _lines() -> Iterator[bytes | None]:
    """Lines of stdin as they come, None when there was none for a while; ends with stdin."""
    rest = b""
    while True:
        if not select.select([sys.stdin], [], [], _POLL_S)[0]:
            yield None
            continue
        piece = os.read(sys.stdin.fileno(), 1 << 16)
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole


def _speaker() -> Callable[[Word], None]:
    """Writes to what was stdout; whatever Ray prints goes to stderr."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(word: Word) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens: stdin closes, too
            stream.write(word.model_dump_json().encode() + b"\n")

    return say


if __name__ == "__main__":
    sys.exit(main())
