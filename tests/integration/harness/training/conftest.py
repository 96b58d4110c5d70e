"""One project for all trainings: a verifier that runs, its corpus, one trained drafter."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.tiny_corpus import write_running_verifier, write_tiny_corpus

from harness.config.train import TrainConfig
from harness.settings import Settings, load_settings
from harness.tracking.store import Store, open_store
from harness.training.run import TrainRun, run_training

HEAD_DIM = 16
"""Twice hidden / heads, so that an inferred head_dim would show."""

MakeConfig = Callable[..., TrainConfig]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="session")
def settings(project: Path) -> Settings:
    uri = f"sqlite:///{project / 'mlruns' / 'mlflow.db'}"
    found = load_settings(project)
    return found.model_copy(update={"tracking_uri": uri, "cache_dir": project / "cache"})


@pytest.fixture(scope="session")
def store(settings: Settings) -> Store:
    return open_store(settings)


@pytest.fixture(scope="session")
def verifier_path(project: Path) -> Path:
    return write_running_verifier(project / "verifier")


@pytest.fixture(scope="session")
def corpus_dir(project: Path, verifier_path: Path) -> Path:
    return write_tiny_corpus(project / "corpus", verifier_path)


@pytest.fixture(scope="session")
def make_config(verifier_path: Path, corpus_dir: Path) -> MakeConfig:
    def make(**changes: object) -> TrainConfig:
        values = {
            "verifier": str(verifier_path),
            "corpus": str(corpus_dir),
            "head_dim": HEAD_DIM,
            "draft_vocab_size": 48,
            "total_seq_len": 128,
            "epochs": 2,
            "lr": 3e-3,
            "device": "cpu",
            "smoke": "never",
        }
        return TrainConfig.model_validate({**values, **changes})

    return make


@pytest.fixture(scope="session")
def trained(make_config: MakeConfig, settings: Settings, store: Store) -> TrainRun:
    """Two epochs from scratch."""
    return run_training(make_config(), settings, store, lambda *_: None)
