"""An MLflow store for each test: a copy of one that was migrated once and kept between sessions.

PostgreSQL and the MLflow server are started once a session, where a test asks for them.
"""

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path

import pytest
from fakes.command_line import run_harness
from fakes.deployment import TEMPLATE, Deployment
from fakes.ray_cluster import RayCluster
from filelock import FileLock

from harness.digests import write_atomic
from harness.settings import Settings, load_settings
from harness.tracking.embedded import DATABASE, prepare_embedded, write_marker
from harness.tracking.relocate import relocate_store
from harness.tracking.store import Store, open_store


@pytest.fixture(scope="session")
def migrated_database(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A migrated database of this MLflow version; made in 3-60 s when there is none yet."""
    kept = pytestconfig.cache.mkdir(f"mlflow-{version('mlflow')}") / DATABASE
    with FileLock(kept.with_suffix(".lock")):
        if not kept.is_file():
            settings = settings_in(tmp_path_factory.mktemp("template"))
            prepare_embedded(settings)
            write_atomic(kept.with_suffix(".root"), str(settings.mlruns_dir))
            write_atomic(kept, (settings.mlruns_dir / DATABASE).read_bytes())
    return kept


@pytest.fixture
def settings(tmp_path: Path, migrated_database: Path) -> Settings:
    """A project with a store that is ready."""
    settings = settings_in(tmp_path)
    settings.mlruns_dir.mkdir()
    shutil.copyfile(migrated_database, settings.mlruns_dir / DATABASE)
    relocate_store(Path(migrated_database.with_suffix(".root").read_text()), settings.mlruns_dir)
    write_marker(settings.mlruns_dir)
    return settings


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store(settings)


def settings_in(root: Path) -> Settings:
    uri = f"sqlite:///{root / 'mlruns' / DATABASE}"
    return load_settings(root).model_copy(update={"tracking_uri": uri, "cache_dir": root / "cache"})


_numbers = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Deployment]:
    """PostgreSQL alone."""
    found = Deployment()
    found.up("postgres")
    yield found
    found.close()


@pytest.fixture(scope="session")
def postgres_template(postgres: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """PostgreSQL with a migrated database to copy."""
    uri = postgres.create_database(TEMPLATE)
    opened = run_harness(
        tmp_path_factory.mktemp("template"),
        "doctor",
        MLFLOW_TRACKING_URI=uri,
        **postgres.credentials,
    )
    assert uri in opened.stdout, opened.stdout + opened.stderr
    return postgres


@pytest.fixture
def postgres_settings(
    tmp_path: Path, postgres_template: Deployment, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """A project whose store is a PostgreSQL database of its own."""
    monkeypatch.setenv("PGPASSFILE", postgres_template.credentials["PGPASSFILE"])
    # MLflow keeps the connections of each database until the process ends.
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    uri = postgres_template.create_database(f"store_{next(_numbers)}", TEMPLATE)
    return settings_in(tmp_path).model_copy(update={"tracking_uri": uri})


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    """PostgreSQL and the MLflow server with basic auth: all of `deploy/up.sh`."""
    found = Deployment()
    found.up()
    yield found
    found.close()


@pytest.fixture
def server_settings(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """A project whose store is the MLflow server, empty."""
    for name, value in deployment.credentials.items():
        monkeypatch.setenv(name, value)
    deployment.empty("mlflow")
    return settings_in(tmp_path).model_copy(update={"tracking_uri": deployment.server_url})


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Two Ray hosts on loopback; a test that killed some calls `restore`."""
    with pytest.MonkeyPatch.context() as patch:
        cluster = RayCluster(patch)
        yield cluster
        cluster.stop()
