"""speculators' own loading: whole from a prepared parent, silently random from others (S25)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.drafters import build_drafter, build_verifier, edit_tensors, replace

from harness.config.train import TrainConfig
from harness.drafter.checks import check_drafter
from harness.drafter.finetune import prepare_parent
from harness.drafter.tensors import read_folder_headers
from harness.drafter.values import read_tensor
from harness.drafter.verifier import Verifier

UP = "layers.0.mlp.up_proj.weight"
OWN = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return build_verifier(tmp_path / "v", "llama")


def load(path: Path) -> dict[str, np.ndarray]:
    from speculators.model import SpeculatorModel

    state = SpeculatorModel.from_pretrained(str(path)).state_dict()
    return {name: value.float().numpy() for name, value in state.items()}


@pytest.mark.parametrize("form", ["flat", "nested"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_prepared_parent_is_loaded_tensor_by_tensor(
    tmp_path: Path, verifier: Verifier, form: str, dtype: str
) -> None:
    path = build_drafter(tmp_path / "p", verifier, form, has_t2d=form == "nested", dtype=dtype)
    config = TrainConfig(verifier="v", corpus="c", finetune_from="p")
    done = prepare_parent(path, verifier, config, tmp_path / "out")
    loaded = load(done.path)
    headers = read_folder_headers(done.path)
    assert set(loaded) - set(headers) == OWN
    assert set(headers) <= set(loaded)
    for name, header in headers.items():
        stored = read_tensor(done.path, header)
        if header.dtype == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(loaded[name], stored.astype(np.float32))
    assert np.isfinite(loaded["embed_tokens.weight"]).all()


def test_what_speculators_draws_anew_without_a_word_is_found(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "p", verifier, "nested")
    before = read_tensor(path, read_folder_headers(path)[UP])
    respell(path)
    drawn = load(path)[UP]
    assert abs(np.corrcoef(before.ravel(), drawn.ravel())[0, 1]) < 0.1
    assert "S25" in {f.rule for f in check_drafter(path, verifier).findings}
    child = build_drafter(tmp_path / "child", verifier, "nested")
    edit_tensors(child, lambda t: t.update({UP: drawn}))
    found = check_drafter(child, verifier, path, deep=True).of_severity("error")
    assert [(f.rule, f.subject) for f in found] == [("S25", UP)]


def respell(path: Path) -> None:
    """Flat names in a nested folder."""
    config = json.loads((path / "config.json").read_text())
    tensors: dict[str, Any] = {
        key.replace("layers.0.", "midlayer."): read_tensor(path, header)
        for key, header in read_folder_headers(path).items()
    }
    replace(path, config, tensors)
