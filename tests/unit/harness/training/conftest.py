"""A plan of a tiny training, without any file of a corpus behind it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.tiny_models import AUX_LAYER_IDS, write_tiny_verifier

from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus
from harness.drafter.verifier import Verifier
from harness.settings import load_settings
from harness.training.plan import TrainPlan
from harness.training.shape import build_config, resolve_shape

MakePlan = Callable[..., TrainPlan]


@pytest.fixture
def make_plan(tmp_path: Path) -> MakePlan:
    path = write_tiny_verifier(tmp_path / "verifier")
    verifier = Verifier.load(str(path), load_settings(tmp_path))
    corpus = Corpus(
        dir=tmp_path / "corpus",
        tokens_dir=tmp_path / "corpus" / "tokens",
        hidden_states_dir=tmp_path / "corpus" / "hidden_states",
        digest="ab" * 32,
        num_conversations=10,
        num_rows=10,
        num_tokens=100,
        num_loss_tokens=50,
        longest_row_tokens=20,
        verifier_reference=str(path),
        verifier_digest="cd" * 32,
        aux_layer_ids=AUX_LAYER_IDS,
        dtype="float32",
    )

    def make(**changes: object) -> TrainPlan:
        values = {"verifier": str(path), "corpus": "corpus", "head_dim": 8, **changes}
        config = TrainConfig.model_validate(values)
        shape = resolve_shape(config, verifier, corpus.aux_layer_ids)
        return TrainPlan(
            config=config,
            verifier=verifier,
            verifier_digest="cd" * 32,
            corpus=corpus,
            shape=shape,
            draft_config=build_config(shape, verifier, config.ttt_steps),
            parent=None,
            prepared=None,
            warnings=(),
            fingerprint="f" * 64,
        )

    return make
