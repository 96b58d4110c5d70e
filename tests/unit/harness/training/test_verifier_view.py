import json
from pathlib import Path

import numpy as np
import pytest
from fakes.tiny_models import write_tiny_verifier
from safetensors.numpy import load_file, save_file

from harness.drafter.verifier import Verifier
from harness.errors import ConfigError
from harness.settings import load_settings
from harness.training.verifier_view import write_view


def load(path: Path) -> Verifier:
    return Verifier.load(str(path), load_settings(path.parent))


def with_norm(path: Path, name: str = "model.norm.weight") -> Path:
    weights = path / "model.safetensors"
    save_file({**load_file(weights), name: np.ones(16, dtype=np.float32)}, weights)
    return path


def test_the_view_names_three_tensors_and_links_to_their_file(tmp_path: Path) -> None:
    verifier = load(with_norm(write_tiny_verifier(tmp_path / "verifier")))
    view = write_view(verifier, tmp_path / "view")
    index = json.loads((view / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
    }
    assert (view / "model.safetensors").resolve() == verifier.path / "model.safetensors"
    assert json.loads((view / "config.json").read_text())["hidden_size"] == verifier.hidden_size
    assert write_view(verifier, tmp_path / "view") == view


def test_a_verifier_without_its_final_norm_is_refused(tmp_path: Path) -> None:
    verifier = load(write_tiny_verifier(tmp_path / "verifier"))
    with pytest.raises(ConfigError, match=r"final norm model\.norm\.weight"):
        write_view(verifier, tmp_path / "view")
