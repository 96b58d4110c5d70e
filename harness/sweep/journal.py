"""Where a study is kept: a journal file with a lock that dies with its holder, or a database."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from harness.errors import TrackingError

JOURNAL_NAME = "journal.log"
_SQLITE_WAIT_S = 60
_AWAY_S = 300.0
"""How long a database may be away in mid-sweep; as long as a trial waits for the MLflow store."""
_PAUSE_S = 1.0


class _ProcessLock:
    """The kernel's own lock: a process that is killed while it holds it leaves none behind.

    Optuna's default is a file that must grow 30 s old before another process takes it away.
    """

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(f"{path}.flock")

    def acquire(self) -> bool:
        """Waits for the lock."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Gives the lock back."""
        self._lock.release()


class _Delegate:
    """Holds the storage that the calls go to."""

    def __init__(self, storage: BaseStorage) -> None:
        self.storage = storage


def _patient(name: str) -> Callable[..., Any]:
    def call(delegate: _Delegate, *args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + _AWAY_S
        while True:
            try:
                return getattr(delegate.storage, name)(*args, **kwargs)
            except (OperationalError, StorageInternalError) as error:
                if not _is_away(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    return call


_CALLS = [name for name, value in vars(BaseStorage).items() if callable(value) and name[0] != "_"]
PatientStorage: Callable[[BaseStorage], BaseStorage] = type(
    "PatientStorage", (_Delegate, BaseStorage), {name: _patient(name) for name in _CALLS}
)
"""A storage in a database that may be restarted: each call waits until it answers.

Optuna gives up at the first broken connection, and the coordinator with it. A call whose answer was
lost is made again; what it wrote is a value that is then set to the same once more.
Only a new trial whose number was lost is asked for anew: no process has the first one, and the next
call takes it up.
"""


def _is_away(error: BaseException | None) -> bool:
    """Whether a lost connection is behind it: Optuna and SQLAlchemy wrap it, twice at times."""
    while error is not None and not isinstance(error, OperationalError):
        error = error.__cause__ or error.__context__
    return error is not None


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Opens the storage of a study.

    Args:
        url: An RDB URL of Optuna; None: the journal file.
        folder: Of the sweep; the journal lies in it.

    Raises:
        TrackingError: The database does not answer, or the journal is damaged.
    """
    if url is None:
        path = folder / JOURNAL_NAME
        lock = _ProcessLock(path)
        lock.acquire()
        try:
            mend(path)
        finally:
            lock.release()
        try:
            return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        except ValueError as error:
            raise TrackingError(
                f"the sweep's journal {path} is damaged: {error}",
                "restore it from a backup, or begin anew under another name",
            ) from error
    is_file = url.startswith("sqlite")
    options = {"connect_args": {"timeout": _SQLITE_WAIT_S}} if is_file else {"pool_pre_ping": True}
    try:
        return PatientStorage(get_storage(RDBStorage(url, engine_kwargs=options)))
    except (SQLAlchemyError, StorageInternalError, ImportError) as error:
        raise TrackingError(
            f"the sweep's storage does not open: {str(error).splitlines()[0]}",
            "check `storage` in the sweep's YAML; leave it out for a file in mlruns/sweeps",
        ) from error


def mend(path: Path) -> int:
    """Cuts off a last line that a killed writer or a full disk left unfinished.

    Returns:
        Bytes that were cut off. Without this the next line would be written behind them.
    """
    if not path.is_file():
        return 0
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        with path.open("r+b") as stream:
            stream.truncate(whole)
    return len(raw) - whole
