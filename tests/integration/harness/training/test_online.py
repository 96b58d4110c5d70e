"""A training whose hidden states a running vLLM makes, against the same one from the disk."""

from pathlib import Path

import pytest
from fakes.tiny_corpus import (
    AUX_LAYER_IDS,
    NUM_LAYERS,
    write_running_verifier,
    write_tiny_corpus,
    write_words,
)

from harness.corpus.extractplan import ExtractConfig
from harness.corpus.hidden_states import Corpus
from harness.corpus.manifest import Plan, finish_stage, load_manifest
from harness.corpus.servedstates import serve_states
from harness.digests import join_digests
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking.store import Store
from harness.training.plan import build_plan
from harness.training.run import run_training

from .conftest import MakeConfig

pytestmark = pytest.mark.timeout(600)

FIRST_ROW = 21
"""Of 24: trainings validate on a tenth."""


def quiet(text: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture(scope="module")
def wide_verifier(project: Path) -> Path:
    """With heads of 64, which vLLM's attention on a CPU has."""
    path = write_running_verifier(project / "wide-verifier", hidden=192)
    write_words(path)
    return path


@pytest.fixture(scope="module")
def whole(project: Path, wide_verifier: Path) -> Path:
    return write_tiny_corpus(project / "whole", wide_verifier)


@pytest.fixture(scope="module")
def online(project: Path, wide_verifier: Path) -> Path:
    """The same corpus without the states of the rows that are trained on."""
    folder = write_tiny_corpus(project / "online", wide_verifier)
    manifest = load_manifest(folder, "extract")
    gone = {f"hidden_states/hs_{row}.safetensors" for row in range(FIRST_ROW)}
    for name in gone:
        (folder / name).unlink()
    files = join_digests(file for file in manifest.files.files if file.name not in gone)
    config = {**manifest.config, "first_row": FIRST_ROW}
    plan = Plan(stage="extract", inputs=manifest.inputs, config=config)
    finish_stage(folder, plan, manifest.counts, files, dict(manifest.origins))
    return folder


def test_it_learns_what_a_training_from_the_disk_learns(
    whole: Path,
    online: Path,
    wide_verifier: Path,
    make_config: MakeConfig,
    settings: Settings,
    *,
    store: Store,
) -> None:
    values = {"verifier": str(wide_verifier), "epochs": 1}
    disk = run_training(make_config(corpus=str(whole), **values), settings, store, quiet)
    verifier = Verifier.load(str(wide_verifier), settings)
    corpus = Corpus.load(online)
    served = ExtractConfig(max_model_len=corpus.longest_row_tokens + 1)
    layers = (*AUX_LAYER_IDS, NUM_LAYERS)
    with serve_states(verifier, layers, served, online / "server.log") as states:
        config = make_config(corpus=str(online), states_endpoint=states.server.base_url, **values)
        streamed = run_training(config, settings, store, quiet)
        assert not list((online / ".served").glob("*.safetensors"))
    for key in ("val/loss", "val/full_acc_0", "val/acceptance_length"):
        assert streamed.best.metrics[key] == pytest.approx(disk.best.metrics[key], rel=0.02), key


def test_an_online_corpus_without_its_server_is_refused_with_the_command(
    online: Path, wide_verifier: Path, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    values = {"verifier": str(wide_verifier), "corpus": str(online)}
    with pytest.raises(ConfigError, match="states_endpoint: expected an address") as found:
        build_plan(make_config(**values), settings, store, quiet)
    assert "harness data serve" in str(found.value.hint)
    with pytest.raises(ConfigError, match="stores hidden states from row 21 on"):
        build_plan(make_config(val_ratio=0.3, **values), settings, store, quiet)
