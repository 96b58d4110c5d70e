"""Where a study is kept: a journal file with a lock that dies with its holder, or a database."""

from pathlib import Path

from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import SQLAlchemyError

from harness.errors import TrackingError

JOURNAL_NAME = "journal.log"
_SQLITE_WAIT_S = 60


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
    options = {"connect_args": {"timeout": _SQLITE_WAIT_S}} if url.startswith("sqlite") else {}
    try:
        return RDBStorage(url, engine_kwargs=options)
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
