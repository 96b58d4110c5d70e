"""An MLflow store for each test: a copy of one that was migrated once and kept between sessions."""

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
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
