"""Repairs a store whose folder was moved: rewrites the absolute artifact paths in its database."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from harness.config.load import Frozen
from harness.errors import ConfigError
from harness.tracking.embedded import database_path, recorded_root, store_lock, write_marker

PATH_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Where MLflow's tables name places of artifacts."""


class Relocation(Frozen):
    """What was rewritten, and the copy of the database from before."""

    old: Path
    new: Path
    num_paths: int
    backup: Path


def relocate_store(old: Path, new: Path) -> Relocation:
    """Makes the store that now lies in `new` whole again, in one transaction after a backup.

    Args:
        old: The `mlruns` folder that the store was made in; it need not exist any more.
        new: The `mlruns` folder where it is now.

    Raises:
        ConfigError: No store in `new`, or it was not made in `old`.
        TrackingError: Another process holds the store's lock.
    """
    old, new = Path(old).absolute(), Path(new).resolve()
    if not database_path(new).is_file():
        raise ConfigError(f"expected a store in {new}, found no {database_path(new)}")
    recorded = recorded_root(new)
    if recorded is not None and recorded != old:
        raise ConfigError(
            f"expected the store in {new} to come from {old}, but it says {recorded}",
            f"harness store relocate {recorded} {new}",
        )
    with store_lock(new):
        backup = _back_up(database_path(new))
        num_paths = _rewrite(database_path(new), str(old), str(new))
        write_marker(new)
    return Relocation(old=old, new=new, num_paths=num_paths, backup=backup)


def _back_up(database: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    copy = database.with_name(f"{database.name}.backup-{stamp}")
    copy.touch(mode=0o600, exist_ok=False)
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def _rewrite(database: Path, old: str, new: str) -> int:
    changed = 0
    with closing(sqlite3.connect(database, timeout=20)) as connection, connection:
        for prefix in ("", "file://"):
            before, after = prefix + old, prefix + new
            for table, column in PATH_COLUMNS:
                # The names are ours; the paths are bound, so a quote in a path is only text.
                statement = (
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "  # noqa: S608
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?"
                )
                values = (after, len(before) + 1, before, len(before) + 1, f"{before}/")
                changed += connection.execute(statement, values).rowcount
    return changed
