from pathlib import Path

import numpy as np
import pytest

from harness.config.train import TrainConfig
from harness.corpus.manifest import Plan, finish_stage
from harness.digests import digest_files
from harness.drafter.verifier import Verifier
from harness.drafter.vocab import build_tables
from harness.errors import CheckError, ConfigError
from harness.training.vocab import settle_vocab

VERIFIER = Verifier.model_construct(reference="tiny", vocab_size=20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tables = build_tables(np.array([3, 5, 8]), 20)
    np.save(tmp_path / "d2t.npy", tables.d2t)
    np.save(tmp_path / "t2d.npy", tables.t2d)
    plan = Plan(stage="vocab", inputs={"verifier": "v" * 64}, config={})
    finish_stage(tmp_path, plan, {}, digest_files(tmp_path, ("d2t.npy", "t2d.npy")), {})
    return tmp_path


def config(**values: object) -> TrainConfig:
    return TrainConfig.model_validate({"verifier": "v", "corpus": "c", **values})


def test_the_size_is_that_of_the_vocabulary(folder: Path) -> None:
    vocab, settled = settle_vocab(config(), VERIFIER, "v" * 64, folder)
    assert vocab is not None
    assert vocab.target_ids.tolist() == [3, 5, 8]
    assert settled.draft_vocab_size == 3
    assert settle_vocab(config(), VERIFIER, "v" * 64, None) == (None, config())


def test_another_size_and_another_verifier_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft_vocab_size: 4 contradicts .* 3 tokens"):
        settle_vocab(config(draft_vocab_size=4), VERIFIER, "v" * 64, folder)
    with pytest.raises(CheckError, match="expected a vocabulary of tiny"):
        settle_vocab(config(), VERIFIER, "w" * 64, folder)
