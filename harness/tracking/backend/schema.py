"""Makes the tables of an MLflow database: in a new SQLite file, or in PostgreSQL by one process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import create_engine, text

_ADVISORY_KEY = 0x6861726E  # "harn": a number that every harness agrees on


def migrate(database: Path, artifacts_dir: Path) -> None:
    """Runs MLflow's migrations and makes the default experiment; takes 6-100 s."""
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # 70 lines about revisions
    store = SqlAlchemyStore(f"sqlite:///{database}", str(artifacts_dir))
    store.engine.dispose()


@contextmanager
def sole_opener(uri: str) -> Iterator[None]:
    """Lets one process after the other open a PostgreSQL store, so that one makes the tables.

    Of three that opened an empty database at once two failed with a duplicate key. The lock is
    PostgreSQL's own: it ends with the connection of its holder, however that ends.
    """
    if not uri.startswith("postgresql"):
        yield
        return
    engine = create_engine(uri, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_KEY})
            yield
    finally:
        engine.dispose()
