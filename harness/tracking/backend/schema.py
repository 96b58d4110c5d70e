"""Makes the tables of an MLflow database in a new SQLite file."""

import logging
from pathlib import Path

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore


def migrate(database: Path, artifacts_dir: Path) -> None:
    """Runs MLflow's migrations and makes the default experiment; takes 6-100 s."""
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # 70 lines about revisions
    store = SqlAlchemyStore(f"sqlite:///{database}", str(artifacts_dir))
    store.engine.dispose()
