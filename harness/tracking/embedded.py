"""The embedded store on disk: made once, found again, and known when it was moved.

MLflow keeps absolute artifact paths in its database and lists nothing, without an error, when the
folder was moved. So a marker file holds the folder's place, and a mismatch is an error.
"""

import json
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock, Timeout

from harness.digests import write_atomic
from harness.errors import PrerequisiteError, TrackingError
from harness.settings import Settings

DATABASE = "mlflow.db"
MARKER = ".harness-store.json"
_LOCK = ".harness-store.lock"
_LOCK_TIMEOUT_S = 300.0
"""Migrating takes 6-100 s on a busy machine; waiting is right for that long."""
_PRIVATE_DIR, _PRIVATE_FILE = 0o700, 0o600


def database_path(mlruns_dir: Path) -> Path:
    """The SQLite file of the store in this folder."""
    return mlruns_dir / DATABASE


def prepare_embedded(settings: Settings) -> None:
    """Makes the store unless it is there, and refuses one that was moved.

    Safe when several processes do it at once: one migrates, the others wait for it.

    Raises:
        TrackingError: The store was moved, or another process holds the lock for 5 minutes.
        PrerequisiteError: The folder cannot be written.
    """
    mlruns = settings.mlruns_dir
    if database_path(mlruns).is_file() and recorded_root(mlruns) == mlruns:
        return
    try:
        mlruns.mkdir(mode=_PRIVATE_DIR, parents=True, exist_ok=True)
        with store_lock(mlruns):
            _make_or_adopt(mlruns)
    except PermissionError as error:
        raise PrerequisiteError(
            f"expected a folder that can be written for the MLflow store, found {mlruns}: {error}",
            "set HARNESS_ROOT to a project folder of yours, or MLFLOW_TRACKING_URI to a store",
        ) from error


def store_lock(mlruns: Path, name: str = _LOCK, timeout_s: float = _LOCK_TIMEOUT_S) -> "HeldLock":
    """A lock file in the store's folder; the kernel frees it when its holder dies."""
    return HeldLock(mlruns / name, timeout_s)


class HeldLock:
    """A file lock as a context manager whose timeout is an error of ours."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._lock = FileLock(path, timeout=timeout_s, mode=_PRIVATE_FILE)

    def __enter__(self) -> None:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise TrackingError(
                f"waited {self._lock.timeout:g} s for {self._path}, which another process holds",
                "let the other harness command finish; the lock frees itself when its holder ends",
            ) from error

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


def recorded_root(mlruns: Path) -> Path | None:
    """The absolute folder that the store's artifact paths name; None when nothing says."""
    marker = mlruns / MARKER
    if marker.is_file():
        try:
            return Path(json.loads(marker.read_text(encoding="utf-8"))["root"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise TrackingError(
                f"expected JSON with the store's folder in {marker}, found something else",
                f"write it anew with: harness store relocate OLD_FOLDER {mlruns}",
            ) from error
    return None


def write_marker(mlruns: Path) -> None:
    """Records where the store is."""
    document = {
        "schema_version": 1,
        "root": str(mlruns),
        "mlflow": _mlflow_version(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomic(mlruns / MARKER, json.dumps(document, indent=2) + "\n")


def _mlflow_version() -> str | None:
    """Of MLflow, or of its distribution without the user interface."""
    for name in ("mlflow", "mlflow-skinny"):
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def _make_or_adopt(mlruns: Path) -> None:
    database = database_path(mlruns)
    if not database.is_file():
        _create(database)
        write_marker(mlruns)
        return
    found = recorded_root(mlruns) or _root_in_database(database)
    if found != mlruns:
        raise TrackingError(
            f"this MLflow store was moved: expected {found}, found it at {mlruns}; "
            "the artifact paths inside still name the old folder",
            f"harness store relocate {found} {mlruns}",
        )
    write_marker(mlruns)


def _root_in_database(database: Path) -> Path | None:
    """Where the default experiment of an unmarked store keeps its artifacts."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        row = connection.execute(
            "SELECT artifact_location FROM experiments ORDER BY experiment_id LIMIT 1"
        ).fetchone()
    connection.close()
    return Path(row[0].removeprefix("file://")).parent.parent if row else None


def _create(database: Path) -> None:
    """Migrates an empty database beside its place and renames it: whole or not there at all."""
    from harness.tracking.backend.schema import migrate  # noqa: PLC0415 - MLflow costs seconds

    temporary = database.with_name(f".{DATABASE}.new")
    for leftover in database.parent.glob(f".{DATABASE}.new*"):
        leftover.unlink()  # of a process that was killed while it migrated; we hold the lock
    temporary.touch(mode=_PRIVATE_FILE)
    migrate(temporary, database.parent / "artifacts")
    connection = sqlite3.connect(temporary)
    connection.execute("PRAGMA journal_mode=WAL")  # 2.3 times the single writes per second
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    (database.parent / "artifacts").mkdir(mode=_PRIVATE_DIR, exist_ok=True)
    database.parent.chmod(_PRIVATE_DIR)  # a checkout may have made it, readable by all
    temporary.replace(database)
