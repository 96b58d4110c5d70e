"""Verifiers with layers that change nothing: what is written, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.drafters import settings_for
from fakes.tiny_models import HIDDEN, NUM_LAYERS, write_tiny_drafter, write_tiny_verifier
from safetensors.numpy import load_file, save_file

from eval.environment import read_synthetic
from harness.drafter.drafter import Drafter
from harness.drafter.pad import pad_verifier, require_named_layers
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import CheckError, ConfigError

OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def write_layered(folder: Path, outputs: tuple[str, ...] = OUTPUTS, **changes: Any) -> Path:
    write_tiny_verifier(folder)
    random = np.random.default_rng(0)
    tensors = load_file(folder / "model.safetensors")
    for index in range(NUM_LAYERS):
        for name in (*outputs, "input_layernorm.weight"):
            values = random.standard_normal((HIDDEN, HIDDEN)).astype(np.float32)
            tensors[f"model.layers.{index}.{name}"] = values
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def load(folder: Path) -> Verifier:
    return Verifier.load(str(folder), settings_for(folder.parent))


def test_added_layers_are_the_last_one_with_zero_outputs_and_the_rest_is_untouched(
    tmp_path: Path,
) -> None:
    plain = load(write_layered(tmp_path / "plain", layer_types=["full"] * NUM_LAYERS))
    pad_verifier(plain, 3, tmp_path / "padded", digest="d")
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "padded"))
    assert all(np.array_equal(new.pop(name), tensor) for name, tensor in old.items())
    assert len(new) == 3 * 3
    for name, tensor in new.items():
        inner = name.split(".", 3)[3]
        if inner in OUTPUTS:
            assert not tensor.any()
        else:
            assert np.array_equal(tensor, old[f"model.layers.{NUM_LAYERS - 1}.{inner}"])
    config = json.loads((tmp_path / "padded" / "config.json").read_text())
    assert config["num_hidden_layers"] == len(config["layer_types"]) == NUM_LAYERS + 3
    assert (tmp_path / "padded" / "tokenizer.json").read_text() == "{}"


def test_a_padded_verifier_says_what_it_is_and_is_another_one(tmp_path: Path) -> None:
    plain = load(write_layered(tmp_path / "plain"))
    pad_verifier(plain, 1, tmp_path / "padded", digest="d")
    padded = load(tmp_path / "padded")
    assert padded.is_synthetic
    assert not plain.is_synthetic
    assert verifier_digest(padded) != verifier_digest(plain)
    label = json.loads(read_synthetic(padded.path) or "{}")
    assert label["num_added_layers"] == 1
    assert label["of_digest"] == "d"
    assert read_synthetic(plain.path) is None


def test_a_nested_text_model_is_the_one_that_grows(tmp_path: Path) -> None:
    folder = write_layered(tmp_path / "plain")
    config = json.loads((folder / "config.json").read_text())
    nested = {"architectures": ["X"], "text_config": config, "num_hidden_layers": 5}
    (folder / "config.json").write_text(json.dumps(nested))
    pad_verifier(load(folder), 2, tmp_path / "padded", digest="d")
    written = json.loads((tmp_path / "padded" / "config.json").read_text())
    assert written["text_config"]["num_hidden_layers"] == NUM_LAYERS + 2
    assert written["num_hidden_layers"] == 5


@pytest.mark.parametrize("num_layers", [0, -1, 10_001])
def test_a_number_of_layers_that_makes_no_sense_is_refused(tmp_path: Path, num_layers: int) -> None:
    plain = load(write_layered(tmp_path / "plain"))
    with pytest.raises(ConfigError, match=f"expected 1 to 10000, found {num_layers}"):
        pad_verifier(plain, num_layers, tmp_path / "padded", digest="d")
    assert not (tmp_path / "padded").exists()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"harness_synthetic": {"kind": "padded"}}, "harness_synthetic"),
        ({"outputs": OUTPUTS[:1]}, "mlp.down_proj"),
    ],
)
def test_a_verifier_that_is_not_plain_is_refused(
    tmp_path: Path, changes: dict[str, Any], found: str
) -> None:
    plain = load(write_layered(tmp_path / "plain", **changes))
    with pytest.raises(CheckError, match=found):
        pad_verifier(plain, 1, tmp_path / "padded", digest="d")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    plain = load(write_layered(tmp_path / "plain"))
    (tmp_path / "padded").mkdir()
    (tmp_path / "padded" / "x").touch()
    with pytest.raises(ConfigError, match="found something"):
        pad_verifier(plain, 1, tmp_path / "padded", digest="d")


def test_a_drafter_that_leaves_its_layers_to_vllm_is_refused_on_a_padded_verifier(
    tmp_path: Path,
) -> None:
    plain = load(write_layered(tmp_path / "plain"))
    pad_verifier(plain, 1, tmp_path / "padded", digest="d")
    drafter = Drafter.load(write_tiny_drafter(tmp_path / "drafter"))
    silent = drafter.model_copy(update={"aux_layer_ids": None})
    require_named_layers(drafter, load(tmp_path / "padded"))
    require_named_layers(silent, plain)
    with pytest.raises(CheckError, match="auxiliary layers by number"):
        require_named_layers(silent, load(tmp_path / "padded"))
