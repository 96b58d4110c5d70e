"""Drafters of every family that vLLM serves: healthy ones are clean, their own faults are found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.drafters import (
    VOCAB,
    build_drafter,
    build_verifier,
    decoder,
    edit_config,
    edit_tensors,
    noise,
    replace,
    settings_for,
)

from harness.config.train import TrainConfig
from harness.drafter.checks import check_drafter
from harness.drafter.convert import convert_drafter
from harness.drafter.drafter import Drafter
from harness.drafter.finetune import prepare_parent
from harness.drafter.tensors import read_folder_headers
from harness.drafter.values import read_tensor
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError

CONFIG = TrainConfig(verifier="v", corpus="c", finetune_from="p")
QUERY = "layers.0.self_attn.q_proj.weight"
FP8 = {"quantization_config": {"quant_method": "fp8"}}


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return build_verifier(tmp_path / "v")


def rules(path: Path, verifier: Verifier | None = None) -> list[tuple[str, str]]:
    found = check_drafter(path, verifier, deep=True).findings
    return [(finding.rule, finding.severity) for finding in found]


@pytest.mark.parametrize("form", ["nested", "flat"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_two_layers_are_clean_converted_and_taken_whole(
    tmp_path: Path, verifier: Verifier, form: str, model_type: str
) -> None:
    path = build_drafter(tmp_path / "d", verifier, form, model_type=model_type, num_layers=2)
    assert Drafter.load(path).tensors["layers.1.self_attn.q_proj.weight"].shape == (64, 64)
    assert rules(path, verifier) == []
    other = "flat" if form == "nested" else "speculators"
    assert rules(convert_drafter(path, other, tmp_path / "other").path, verifier) == []
    child = prepare_parent(path, verifier, CONFIG, tmp_path / "child")
    assert Drafter.load(child.path).model_type == model_type
    assert {record.action for record in child.tensors} <= {"loaded", "remapped", "shared"}


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_qwen3_counts_the_aux_ids_and_llama_does_not(
    tmp_path: Path, verifier: Verifier, form: str
) -> None:
    path = build_drafter(tmp_path / "q", verifier, form, model_type="qwen3", num_aux=4)
    assert Drafter.load(path).num_aux == 4
    assert rules(path, verifier) == []
    path = build_drafter(tmp_path / "l", verifier, form, num_aux=4)
    assert ("S16", "error") in rules(path, verifier)


def test_a_flat_qwen3_without_head_dim_gets_128_from_transformers(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "d", verifier, "flat", model_type="qwen3")
    edit_config(path, lambda config: config.pop("head_dim"))
    found = check_drafter(path, verifier).of_severity("error")
    assert {finding.rule for finding in found} == {"S1"}
    assert found[0].fix == "set head_dim to 16 in config.json"


def test_a_flat_folder_is_what_its_architecture_says(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "d", verifier, "flat", model_type="qwen3")
    edit_config(path, lambda config: config.update(architectures=["LlamaForCausalLMEagle3"]))
    assert Drafter.load(path).model_type == "llama"
    assert ("unexpected", "error") in rules(path, verifier)


@pytest.mark.parametrize("query_rank", [20, None])
def test_an_mla_drafter_is_clean_and_stays_as_it_is(
    tmp_path: Path, verifier: Verifier, query_rank: int | None
) -> None:
    path = build_drafter(tmp_path / "d", verifier, "mla", num_layers=2)
    if query_rank is None:
        edit_config(path, lambda config: config.update(q_lora_rank=None))
        edit_tensors(path, _full_queries)
    assert Drafter.load(path).format == "mla"
    assert rules(path, verifier) == []
    with pytest.raises(ConfigError, match="unquantised EAGLE-3"):
        convert_drafter(path, "speculators", tmp_path / "out")
    with pytest.raises(ConfigError, match="unquantised EAGLE-3"):
        prepare_parent(path, verifier, CONFIG, tmp_path / "out")


@pytest.mark.parametrize("key", ["v_head_dim", "qk_nope_head_dim", "kv_lora_rank"])
def test_wrong_sizes_of_an_mla_drafter_are_errors(
    tmp_path: Path, verifier: Verifier, key: str
) -> None:
    path = build_drafter(tmp_path / "d", verifier, "mla")
    edit_config(path, lambda config: config.update({key: 12}))
    report = check_drafter(path, verifier)
    assert not report.ok
    assert not any("set head_dim" in finding.fix for finding in report.findings)


def test_a_norm_before_fc_that_mla_has_not_is_an_error(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "d", verifier, "mla")
    edit_config(path, lambda config: config.update(norm_before_fc=True))
    edit_tensors(path, lambda tensors: tensors.update({"input_norm.weight": noise("n", 192)}))
    assert ("S11", "error") in rules(path, verifier)


def test_the_whole_vocabulary_needs_neither_tables_nor_a_head(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "d", verifier)
    edit_config(path, lambda config: config.update(draft_vocab_size=VOCAB))
    edit_tensors(path, lambda tensors: [tensors.pop(n) for n in ("d2t", "t2d", "lm_head.weight")])
    assert rules(path, verifier) == []
    child = prepare_parent(path, verifier, CONFIG, tmp_path / "child")
    actions = {record.name: record.action for record in child.tensors}
    assert actions["lm_head.weight"] == "shared"


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_what_a_quantiser_leaves_alone_is_still_checked(
    tmp_path: Path, verifier: Verifier, dtype: Any
) -> None:
    path = build_drafter(tmp_path / "d", verifier)
    edit_config(path, lambda config: config.update(FP8))
    packed = np.ones((64, 32 if dtype == np.int64 else 128), dtype) * (np.arange(64)[:, None] + 1)
    scale = np.ones(64, np.float32)
    edit_tensors(path, lambda t: t.update({QUERY: packed.astype(dtype), f"{QUERY}_scale": scale}))
    assert rules(path, verifier) == [("quantised", "warning")]
    edit_tensors(path, lambda tensors: tensors.pop("d2t"))
    assert ("S4", "error") in rules(path, verifier)


def test_head_dim_is_checked_of_an_8_bit_drafter(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "d", verifier)
    edit_config(path, lambda config: config.update(FP8))
    edit_config(path, lambda config: decoder(config).update(head_dim=8))
    assert ("S1", "error") in rules(path, verifier)


def test_packed_weights_of_a_quantised_drafter_are_no_crash(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "d", verifier)
    edit_config(path, lambda config: config.update(FP8))
    headers = read_folder_headers(path)
    tensors = {key: read_tensor(path, header) for key, header in headers.items()}
    tensors["lm_head.weight"] = np.zeros((0,), np.float16)
    replace(path, Drafter.load(path).config, tensors)
    assert ("shape", "error") in rules(path, verifier)


def _full_queries(tensors: dict[str, Any]) -> None:
    for index, columns in ((0, 128), (1, 64)):
        prefix = f"layers.{index}.self_attn."
        for name in ("q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"):
            del tensors[prefix + name]
        tensors[f"{prefix}q_proj.weight"] = noise("q", 4 * 24, columns)


def test_a_quantised_head_of_the_verifier_is_not_compared(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "d", verifier)
    headers = read_folder_headers(verifier.path)
    tensors = {key: read_tensor(verifier.path, header) for key, header in headers.items()}
    rolled = np.roll(tensors["lm_head.weight"], 1, axis=0)
    tensors["lm_head.weight"] = (100 * rolled).astype(np.int64)
    replace(verifier.path, json.loads((verifier.path / "config.json").read_text()), tensors)
    (verifier.path / "tokenizer.json").write_text("{}")
    assert rules(path, Verifier.load(str(verifier.path), settings_for(tmp_path))) == []
