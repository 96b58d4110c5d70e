"""PostgreSQL and the MLflow server as `deploy/up.sh` starts them, on loopback, for tests."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

UP = Path(__file__).parents[2] / "deploy" / "up.sh"
TEMPLATE = "template_store"
_PER_INSTALL = Path("/usr/lib/postgresql")


def require_postgresql() -> None:
    """Skips where there is no PostgreSQL: `make test` installs it where apt-get is."""
    if not shutil.which("pg_ctl") and not list(_PER_INSTALL.glob("*/bin/pg_ctl")):
        pytest.skip("no PostgreSQL here, and it could not be installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """A folder that `up.sh` works in. Short and in the system's temporary place: PostgreSQL's own
    account has to reach it, and the path of a socket is 107 bytes at most."""

    def __init__(self) -> None:
        require_postgresql()
        self.dir = Path(tempfile.mkdtemp(prefix="harness-up-"))
        self.environment = {
            **os.environ,
            "HARNESS_SERVER_DIR": str(self.dir),
            "POSTGRES_PORT": str(free_port()),
            "MLFLOW_PORT": str(free_port()),
            "MLFLOW_WORKERS": "1",
            "POSTGRES_OPTIONS": "fsync=off",
            "PYTHON": sys.executable,
        }

    @property
    def base_url(self) -> str:
        return f"postgresql+psycopg://harness@127.0.0.1:{self.environment['POSTGRES_PORT']}"

    @property
    def server_url(self) -> str:
        return f"http://127.0.0.1:{self.environment['MLFLOW_PORT']}"

    @property
    def credentials(self) -> dict[str, str]:
        """What a client needs in its environment: no address here holds a password."""
        password = self.dir / "admin-password"
        found = {"PGPASSFILE": str(self.dir / "pgpass")}
        if password.is_file():
            found |= {
                "MLFLOW_TRACKING_USERNAME": "admin",
                "MLFLOW_TRACKING_PASSWORD": password.read_text().strip(),
            }
        return found

    def up(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [str(UP), *arguments],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def connect(self, database: str) -> "psycopg.Connection[tuple[object, ...]]":
        port = int(self.environment["POSTGRES_PORT"])
        return psycopg.connect(
            host="127.0.0.1", port=port, user="harness", dbname=database, autocommit=True,
            passfile=str(self.dir / "pgpass"),
        )  # fmt: skip

    def create_database(self, name: str, template: str | None = None) -> str:
        """Makes a database; returns its address."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        with self.connect("postgres") as connection:
            connection.execute(statement)
        return f"{self.base_url}/{name}"

    def empty(self, database: str) -> None:
        """Leaves of an MLflow database what it has when it is new."""
        kept = ("alembic_version", "experiments", "workspaces")
        with self.connect(database) as connection:
            rows = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
            names = [sql.Identifier(str(name)) for (name,) in rows if name not in kept]
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(names)))
            connection.execute("DELETE FROM experiments WHERE experiment_id <> 0")

    def rows_with(self, database: str, text: str) -> list[str]:
        """The tables with a row that holds this text anywhere."""
        with self.connect(database) as connection:
            rows = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
            ask = sql.SQL("SELECT 1 FROM {0} WHERE position(%s in {0}::text) > 0 LIMIT 1")
            return [
                str(name)
                for (name,) in rows
                if connection.execute(ask.format(sql.Identifier(str(name))), [text]).fetchone()
            ]

    def close(self) -> None:
        self.up("stop")
        shutil.rmtree(self.dir, ignore_errors=True)
