"""Tasks on a Ray cluster, through a process that holds it; that one may die, and is begun again.

Ray itself is imported there alone.
"""

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import harness
from harness.drafter.provenance import CODE_DIRS, code_digest
from harness.errors import PrerequisiteError
from harness.launch.hosts import Wanted
from harness.launch.ports import Task
from harness.launch.ray_words import (
    ADMISSION_HINT,
    WORD,
    Connected,
    Count,
    Ended,
    Launch,
    Lost,
    Order,
    Places,
    Refused,
    Stop,
    Word,
)
from harness.settings import Settings, child_environment, ray_environment
from harness.tracking.owner import current_owner

_MODULE = "harness.launch.ray_driver"
_PATIENCE_S = 300.0
_FIRST_PATIENCE_S = 30.0
"""For a cluster that never answered: the address may be wrong."""
_RETRY_S = 2.0
_STOP_WAIT_S = 75.0
"""The driver gives tasks a minute to save."""
_LISTEN_S = 0.1
_LOG_TAIL = 600
_BAD_TOKEN = "InvalidAuthToken"  # noqa: S105 - what Ray calls it
_LAUNCHES, _CODE, _MARKER = "launch", "code", "marker"
_KILLED = -9


class RayJob:
    """A task in the hands of the cluster."""

    def __init__(self, launcher: "RayLauncher", task: Task) -> None:
        self.task = task
        self.code: int | None = None
        self.is_lost = False
        self.is_sent = False
        self._launcher = launcher

    def poll(self) -> int | None:
        """See `Job.poll`."""
        if self.code is None:
            self._launcher.listen()
        return self.code

    def interrupt(self) -> None:
        """See `Job.interrupt`."""
        self._launcher.stop(self, is_now=False)

    def kill(self) -> None:
        """See `Job.kill`."""
        self._launcher.stop(self, is_now=True)

    def close(self) -> None:
        """Nothing of it is here."""


class RayLauncher:
    """Runs tasks on the cluster at an address; use as a context manager.

    Args:
        address: Of the head, `host:port`, where this machine is a node of the cluster.
        settings: Of the project, whose folder every host sees.
        code: Digest of the code that hosts must have; this process's own by default.
        patience_s: How long a cluster that went away is waited for; for the first answer, half a
            minute at most.
    """

    def __init__(
        self,
        address: str,
        settings: Settings,
        *,
        code: str | None = None,
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = _make_shipment(settings.mlruns_dir / _LAUNCHES)
        host = current_owner().host if settings.tracking_uri.startswith("sqlite:") else None
        self._wanted = Wanted(
            address=address,
            code_dir=self._folder / _CODE,
            code=code or code_digest(self._folder / _CODE),
            marker=self._folder / _MARKER,
            only_host=host,
        )
        self._patience_s, self._clock = min(patience_s, _FIRST_PATIENCE_S), clock
        self._later_patience_s = patience_s
        self._jobs: dict[str, RayJob] = {}
        self._places: int | None = None
        self._refusal: Refused | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._is_connected = False
        self._away_since = self._next_start = clock()

    def __enter__(self) -> "RayLauncher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def driver_pid(self) -> int | None:
        """The process that holds the cluster; None while there is none."""
        return self._process.pid if self._process else None

    def count_places(self, num_gpus: int) -> int:
        """See `Launcher.count_places`."""
        self._places = None
        is_asked = False
        while self._places is None:
            self.listen(_LISTEN_S)
            if self._is_connected and not is_asked:
                self._order(Count(num_gpus=num_gpus))
                is_asked = True
            is_asked = is_asked and self._is_connected
        return self._places

    def launch(self, task: Task) -> RayJob:
        """See `Launcher.launch`."""
        job = self._jobs[task.id] = RayJob(self, task)
        return job

    def stop(self, job: RayJob, *, is_now: bool) -> None:
        """Asks a job to stop, or ends it."""
        if job.code is None and not job.is_sent:
            self._end(job, _KILLED)
        elif job.code is None:
            self._order(Stop(id=job.task.id, is_now=is_now))

    def listen(self, wait_s: float = 0.0) -> None:
        """Takes what the driver says; begins it again when it is gone, and sends what waits.

        Raises:
            PrerequisiteError: A host is not what it must be, or the cluster stays away.
        """
        if self._process is None:
            self._start()
        for word in self._read(wait_s):
            self._take(word)
        if self._refusal is not None:
            self._lose_all()
            raise PrerequisiteError(self._refusal.message, self._refusal.hint)
        if self._is_connected:
            for job in list(self._jobs.values()):
                if not job.is_sent:
                    job.is_sent = True
                    self._order(Launch(task=job.task))
        elif self._clock() - self._away_since >= self._patience_s or self._is_unwelcome():
            self._lose_all()
            raise self._absence()

    def close(self) -> None:
        """Ends what runs, tasks asked first, and lets go of the cluster."""
        process, self._process = self._process, None
        if process is not None:
            _close_pipes(process)
            try:
                process.wait(_STOP_WAIT_S if self._is_connected else 0.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._log.close()

    def _start(self) -> None:
        if self._clock() < self._next_start:
            return
        self._next_start = self._clock() + _RETRY_S
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env=child_environment(**ray_environment()),
        )
        self._rest = b""
        self._write(self._wanted.model_dump_json())

    def _read(self, wait_s: float) -> list[Word]:
        """What was said; at the driver's end every task that it had is lost."""
        process, words = self._process, list[Word]()
        if process is None or process.stdout is None:
            time.sleep(wait_s)
            return []
        while select.select([process.stdout], [], [], wait_s)[0]:
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                return [*words, *self._bury(process)]
            *lines, self._rest = (self._rest + piece).split(b"\n")
            words += [WORD.validate_json(line) for line in lines]
            wait_s = 0.0
        return words

    def _bury(self, process: subprocess.Popen[bytes]) -> list[Word]:
        process.wait()
        _close_pipes(process)
        self._process = None
        if self._is_connected:
            self._is_connected, self._away_since = False, self._clock()
        why = "the Ray cluster went away"
        return [Lost(id=job.task.id, why=why) for job in self._jobs.values() if job.is_sent]

    def _take(self, word: Word) -> None:
        if isinstance(word, Connected):
            self._is_connected, self._patience_s = True, self._later_patience_s
        elif isinstance(word, Places):
            self._places = word.count
        elif isinstance(word, Refused):
            self._refusal = word
        elif word.id in self._jobs:
            job = self._jobs[word.id]
            job.is_lost = isinstance(word, Lost)
            self._end(job, word.code if isinstance(word, Ended) else _KILLED)

    def _lose_all(self) -> None:
        """So that whoever looks at a job after the error sees its end."""
        for job in list(self._jobs.values()):
            job.is_lost = True
            self._end(job, _KILLED)

    def _end(self, job: RayJob, code: int) -> None:
        del self._jobs[job.task.id]
        job.code = code

    def _order(self, order: Order) -> None:
        self._write(order.model_dump_json())

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # `_read` sees its end
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def _last_words(self) -> str:
        """The end of what Ray said."""
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _LOG_TAIL, max(size - _LOG_TAIL, 0))
        return tail.decode(errors="replace").strip() or "nothing"

    def _is_unwelcome(self) -> bool:
        return _BAD_TOKEN in self._last_words()

    def _absence(self) -> PrerequisiteError:
        said = self._last_words()
        if _BAD_TOKEN in said:
            address = self._wanted.address
            return PrerequisiteError(f"Ray at {address} does not take our token", ADMISSION_HINT)
        return PrerequisiteError(
            f"expected a Ray cluster at {self._wanted.address}, none answered within "
            f"{self._patience_s:.0f} s; Ray said: {said}",
            "start it (ray start --head, on the other hosts ray start --address=...) with the "
            "token of ~/.ray/auth_token on every host; the same command goes on",
        )


def _make_shipment(parent: Path) -> Path:
    """A folder with a copy of the code: a driver that is begun again ships the same once more."""
    code_digest()  # kept for the runs that this process opens: the same as what is shipped
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    own = Path(harness.__file__).parents[1]
    for name in CODE_DIRS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(own / name, folder / _CODE / name, ignore=ignored)
    (folder / _MARKER).touch()
    return folder


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
