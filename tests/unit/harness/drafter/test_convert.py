"""Conversion is lossless both ways (S19), strict, and undone by the way back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.drafters import build_drafter, build_verifier, edit_config, edit_tensors

from harness.drafter.checks import check_drafter
from harness.drafter.convert import convert_drafter
from harness.drafter.drafter import Drafter
from harness.drafter.keys import plain_name
from harness.drafter.tensors import read_folder_headers
from harness.drafter.values import read_tensor
from harness.errors import CheckError, ConfigError

NOT_FACTS = {"path", "format", "config", "tensors", "given", "architectures", "key_prefix"}
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"dtype": "bfloat16"},
    "without t2d": {"has_t2d": False},
    "with an embedding copy": {"has_embed": True},
    "sharded": {"is_sharded": True},
    "qwen3 layers": {"model_type": "qwen3"},
}


def stored(path: Path) -> dict[str, tuple[str, bytes]]:
    return {
        plain_name(key): (header.dtype, read_tensor(path, header).tobytes())
        for key, header in read_folder_headers(path).items()
    }


def facts(path: Path) -> dict[str, Any]:
    return Drafter.load(path).model_dump(exclude=NOT_FACTS)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("form", "other"), [("nested", "flat"), ("flat", "speculators")])
@pytest.mark.parametrize("kind", ["llama", "kimi"])
def test_there_and_back_is_equal_in_every_fact_and_bit(
    tmp_path: Path, kind: str, form: str, other: Any, options: dict[str, Any]
) -> None:
    verifier = build_verifier(tmp_path / "v", kind)
    path = build_drafter(tmp_path / "d", verifier, form, **options)
    back: Any = "speculators" if other == "flat" else "flat"
    there = convert_drafter(path, other, tmp_path / "there")
    again = convert_drafter(there.path, back, tmp_path / "again")
    assert stored(path) == stored(there.path) == stored(again.path)
    assert facts(path) == facts(again.path)
    for converted in (there, again):
        findings = check_drafter(converted.path, verifier, path, deep=True).findings
        assert [f for f in findings if f.severity != "info"] == []


def test_what_the_library_converter_drops_is_kept(tmp_path: Path) -> None:
    """S19: norm flags, aux ids, rope in its new spelling and dtype survive."""
    path = build_drafter(tmp_path / "d", build_verifier(tmp_path / "v"), "flat", dtype="bfloat16")
    convert_drafter(path, "speculators", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["norm_before_residual"] is True
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 15, 27]
    assert config["dtype"] == "bfloat16"
    layer = config["transformer_layer_config"]
    assert layer["rope_parameters"] == {"rope_theta": 50000.0, "rope_type": "default"}
    assert "rope_theta" not in layer


def test_an_edit_of_the_converted_config_survives_the_way_back(tmp_path: Path) -> None:
    path = build_drafter(tmp_path / "d", build_verifier(tmp_path / "v"), "nested")
    convert_drafter(path, "flat", tmp_path / "flat")
    edit_config(tmp_path / "flat", lambda c: c.update(norm_output=True))
    convert_drafter(tmp_path / "flat", "speculators", tmp_path / "back")
    assert Drafter.load(tmp_path / "back").norm_output


def test_names_are_made_plain_in_the_same_format(tmp_path: Path) -> None:
    path = build_drafter(tmp_path / "d", build_verifier(tmp_path / "v"), "nested")

    def prefix(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.startswith("layers.")]:
            tensors[f"model.midlayer.{name.removeprefix('layers.0.')}"] = tensors.pop(name)

    edit_tensors(path, prefix)
    done = convert_drafter(path, "speculators", tmp_path / "out")
    assert check_drafter(done.path, None).findings == ()
    assert Drafter.load(done.path).key_prefix == "layers.0."


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("layers.0.mlp.up_proj.weight"),
        lambda t: t.update({"verifier_norm.weight": np.ones(64, np.float32)}),
    ],
    ids=["missing", "unexpected"],
)
@pytest.mark.parametrize(("form", "other"), [("nested", "flat"), ("flat", "speculators")])
def test_missing_and_unexpected_tensors_are_errors_and_nothing_is_written(
    tmp_path: Path, form: str, other: Any, change: Any
) -> None:
    path = build_drafter(tmp_path / "d", build_verifier(tmp_path / "v"), form)
    edit_tensors(path, change)
    with pytest.raises(CheckError):
        convert_drafter(path, other, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "v"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    path = build_drafter(tmp_path / "d", build_verifier(tmp_path / "v"))
    with pytest.raises(ConfigError, match="new or empty"):
        convert_drafter(path, "flat", tmp_path / "v")


def test_an_mla_drafter_has_no_other_format(tmp_path: Path) -> None:
    path = build_drafter(tmp_path / "d", build_verifier(tmp_path / "v"), "flat")
    sizes = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
    edit_config(path, lambda c: c.update(sizes, architectures=["Eagle3DeepseekV2ForCausalLM"]))

    def to_mla(tensors: dict[str, Any]) -> None:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors.pop(f"layers.0.self_attn.{name}.weight")
        shapes = {
            "q_proj": (64, 128), "kv_a_proj_with_mqa": (16, 128), "kv_a_layernorm": (8,),
            "kv_b_proj": (96, 8), "o_proj": (64, 64),
        }  # fmt: skip
        for name, shape in shapes.items():
            tensors[f"layers.0.self_attn.{name}.weight"] = np.full(shape, 0.5, np.float32)

    edit_tensors(path, to_mla)
    edit_config(path, lambda c: c.update(norm_before_fc=False))
    edit_tensors(path, lambda t: t.pop("input_norm.weight"))
    assert check_drafter(path, None).ok
    assert Drafter.load(path).format == "mla"
    with pytest.raises(ConfigError, match="found mla"):
        convert_drafter(path, "speculators", tmp_path / "out")
