"""One project with a tiny verifier and corpus; a sweep of small trainings in it, as a command."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from fakes.tiny_corpus import write_running_verifier, write_tiny_corpus

from harness.settings import Settings, load_settings

Sweep = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    project = tmp_path_factory.mktemp("sweeps")
    verifier = write_running_verifier(project / "verifier")
    return write_project(project, verifier, write_tiny_corpus(project / "corpus", verifier))


def write_project(project: Path, verifier: Path, corpus: Path, **changes: object) -> Settings:
    """A base training of this verifier, and the settings of a project in the folder."""
    train = {
        "verifier": str(verifier),
        "corpus": str(corpus),
        "head_dim": 16,
        "draft_vocab_size": 48,
        "total_seq_len": 128,
        "lr": 3e-3,
        "device": "cpu",
        "upload_below_mb": 0,
        "keep_best": 1,
    }
    (project / "train.yaml").write_text(yaml.safe_dump({**train, **changes}))
    uri = f"sqlite:///{project / 'mlruns' / 'mlflow.db'}"
    found = load_settings(project)
    return found.model_copy(update={"tracking_uri": uri, "cache_dir": project / "cache"})


@pytest.fixture
def start(settings: Settings) -> Sweep:
    """Starts `harness sweep` on a configuration written from keywords."""

    def begin(
        name: str, *arguments: str, store: Settings | None = None, **changes: object
    ) -> subprocess.Popen[str]:
        values: dict[str, object] = {
            "name": name,
            "train": "train.yaml",
            "fixed": {"epochs": 2},
            "objectives": [{"metric": "acceptance_length"}],
            "space": {"lr": {"type": "float", "low": 1e-3, "high": 1e-2, "log": True}},
            "n_trials": 3,
            "sampler": {"type": "qmc", "seed": 1},
            "num_served": 0,
        }
        path = settings.root_dir / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**values, **changes}))
        return run_harness(store or settings, "sweep", str(path), *arguments)

    return begin


def run_harness(settings: Settings, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "HARNESS_ROOT": str(settings.root_dir),
        "HARNESS_CACHE": str(settings.cache_dir),
        "MLFLOW_TRACKING_URI": settings.tracking_uri,
        "HARNESS_SWEEP_STORAGE": settings.sweep_storage or "",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
