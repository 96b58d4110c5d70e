"""Every healthy drafter is clean; every corruption of section S1-S27 is found by its own rule."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fakes.drafters import (
    DRAFT_VOCAB,
    HEADS,
    VERIFIER_KINDS,
    build_drafter,
    build_verifier,
    decoder,
    edit_config,
    edit_tensors,
    noise,
    settings_for,
)

from harness.drafter.checks import check_drafter, require_sound
from harness.drafter.drafter import Drafter
from harness.drafter.values import read_tensor
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

Change = Callable[[dict[str, Any]], object]

HEALTHY: dict[str, dict[str, Any]] = {
    "nested": {"form": "nested"},
    "flat with midlayer": {"form": "flat"},
    "without t2d": {"form": "flat", "has_t2d": False},
    "with an embedding copy": {"form": "nested", "has_embed": True},
    "bf16": {"form": "nested", "dtype": "bfloat16"},
    "sharded": {"form": "flat", "is_sharded": True},
    "head trained apart": {"form": "flat", "is_head_apart": True},
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One verifier of each kind and a healthy drafter in both forms for each."""
    root = tmp_path_factory.mktemp("originals")
    for kind in VERIFIER_KINDS:
        verifier = build_verifier(root / kind, kind)
        for form in ("nested", "flat"):
            build_drafter(root / f"{kind}-{form}", verifier, form)
    return root


def load(root: Path, kind: str) -> Verifier:
    return Verifier.load(str(root / kind), settings_for(root))


@pytest.fixture
def broken(originals: Path, tmp_path: Path) -> Callable[[str, str], Path]:
    def copy(kind: str, form: str) -> Path:
        return Path(shutil.copytree(originals / f"{kind}-{form}", tmp_path / "drafter"))

    return copy


@pytest.mark.parametrize("kind", VERIFIER_KINDS)
@pytest.mark.parametrize("form", ["nested", "flat"])
def test_healthy_drafters_of_every_verifier_are_clean(
    originals: Path, kind: str, form: str
) -> None:
    path = originals / f"{kind}-{form}"
    report = check_drafter(path, load(originals, kind), Drafter.load(path), deep=True)
    assert [f for f in report.findings if f.severity != "info"] == []


@pytest.mark.parametrize("options", HEALTHY.values(), ids=HEALTHY)
@pytest.mark.parametrize("purpose", ["serve", "finetune"])
def test_healthy_variants_are_clean(
    originals: Path, tmp_path: Path, options: dict[str, Any], purpose: Any
) -> None:
    verifier = load(originals, "llama")
    path = build_drafter(tmp_path / "drafter", verifier, **options)
    report = check_drafter(path, verifier, deep=True, purpose=purpose)
    assert [f for f in report.findings if f.severity != "info"] == []
    assert ("lm-head-apart" in {f.rule for f in report.findings}) == ("is_head_apart" in options)


def test_a_qwen3_drafter_with_query_and_key_norms_is_clean(originals: Path, tmp_path: Path) -> None:
    verifier = load(originals, "qwen3")
    path = build_drafter(tmp_path / "drafter", verifier, model_type="qwen3")
    assert "layers.0.self_attn.q_norm.weight" in Drafter.load(path).tensors
    assert check_drafter(path, verifier, deep=True).findings == ()


def test_a_head_of_short_rows_is_not_taken_for_a_verifier_row_near_zero(tmp_path: Path) -> None:
    """The verifier's rows share a direction, one lies near zero: what is left of both is alike."""
    verifier = build_verifier(tmp_path / "verifier")

    def share_a_direction(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
        tensors["lm_head.weight"][7] *= 1e-3

    edit_tensors(verifier.path, share_a_direction)
    path = build_drafter(tmp_path / "drafter", verifier, is_head_apart=True)
    edit_tensors(path, lambda found: found.update({"lm_head.weight": found["lm_head.weight"] / 50}))
    found = {f.rule for f in check_drafter(path, verifier, deep=True).findings}
    assert found == {"lm-head-apart"}


def _set(**values: object) -> Change:
    return lambda config: config.update(values)


def _set_decoder(**values: object) -> Change:
    return lambda config: decoder(config).update(values)


def _unset(*names: str) -> Change:
    def change(config: dict[str, Any]) -> None:
        for name in names:
            config.pop(name, None)
            decoder(config).pop(name, None)

    return change


def _drop(*names: str) -> Change:
    return lambda tensors: [tensors.pop(name) for name in names]


def _put(**tensors: Any) -> Change:
    return lambda all_tensors: all_tensors.update(tensors)


def _roll_head(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = np.roll(tensors["lm_head.weight"], 1, axis=0)


def _new_map(tensors: dict[str, Any]) -> None:
    """Another valid vocabulary, while lm_head keeps the old rows: S7 as it happens."""
    targets = np.flatnonzero(~tensors["t2d"])[:DRAFT_VOCAB]
    tensors["d2t"] = targets - np.arange(DRAFT_VOCAB)
    tensors["t2d"] = np.isin(np.arange(len(tensors["t2d"])), targets)


def _absolute(tensors: dict[str, Any]) -> None:
    tensors["d2t"] = tensors["d2t"] + np.arange(DRAFT_VOCAB)


def _in_eagle_config(config: dict[str, Any]) -> None:
    ids = config.pop("eagle_aux_hidden_state_layer_ids")
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}


def _nan(tensors: dict[str, Any]) -> None:
    tensors["norm.weight"][3] = np.nan


DOWN, GATE = "layers.0.mlp.down_proj.weight", "layers.0.mlp.gate_proj.weight"
HEAD, FC, EMBED = "lm_head.weight", "fc.weight", "embed_tokens.weight"
BIAS, AUX_KEY = "layers.0.self_attn.q_proj.bias", "eagle_aux_hidden_state_layer_ids"
INITIAL = np.random.default_rng(0).normal(0, 0.02, (96, 64)).astype(np.float32)


class Corruption(NamedTuple):
    """How a healthy drafter is broken, and what must be said of it."""

    rule: str
    note: str
    config: Change | None
    tensors: Change | None
    severity: str = "error"


CORRUPTIONS = [
    Corruption("S1", "head_dim halved", _set_decoder(head_dim=8), None),
    Corruption("S1", "head_dim larger than trained", _set_decoder(head_dim=64), None),
    Corruption("S2", "MLP cut", _set_decoder(intermediate_size=64), None),
    Corruption("S3", "fc missing", None, _drop(FC)),
    Corruption("S3", "down_proj missing", None, _drop(DOWN)),
    Corruption("S3", "norm missing", None, _drop("norm.weight")),
    Corruption("S4", "d2t missing", None, _drop("d2t")),
    Corruption("S4", "d2t never filled", None, _put(d2t=np.zeros(DRAFT_VOCAB, np.int64))),
    Corruption("S5", "lm_head missing", None, _drop(HEAD)),
    Corruption("S6", "absolute ids", None, _absolute),
    Corruption("S6", "arange", None, _put(d2t=np.arange(DRAFT_VOCAB))),
    Corruption("S6", "out of range", None, lambda t: t["d2t"].__setitem__(-1, 10**6)),
    Corruption("S6", "rolled", None, lambda t: t.update(d2t=np.roll(t["d2t"], 1))),
    Corruption("S6", "t2d of another map", None, lambda t: t.update(t2d=~t["t2d"])),
    Corruption("S7", "rows rolled", None, _roll_head),
    Corruption("S7", "new map, old head", None, _new_map),
    Corruption("S8", "random embedding", None, _put(**{EMBED: noise("z", 512, 64)})),
    Corruption("S9", "no embedding of another width", None, None),
    Corruption("S11", "input_norm dropped", _set(norm_before_fc=False), None),
    Corruption(
        "S12",
        "fc_norm missing",
        _set(norm_before_fc=False, fc_norm=True),
        _drop("input_norm.weight"),
    ),
    Corruption("S13", "no ids", _unset(AUX_KEY), None, "warning"),
    Corruption("S14", "too deep", _set(**{AUX_KEY: [2, 15, 31]}), None),
    Corruption("S14", "zero-based", _set(**{AUX_KEY: [1, 14, 26]}), None, "warning"),
    Corruption("S15", "unsorted", _set(**{AUX_KEY: [15, 2, 27]}), None),
    Corruption("S16", "four ids", _set(**{AUX_KEY: [2, 9, 15, 27]}), None),
    Corruption("S16", "four states", None, _put(**{FC: noise("w", 64, 256)})),
    Corruption("S17", "bias", None, _put(**{BIAS: noise("b", 64)})),
    Corruption("S18", "no rope", _unset("rope_theta", "rope_parameters"), None, "warning"),
    Corruption(
        "S20", "window lost", _set_decoder(layer_types=["sliding_attention"]), None, "warning"
    ),
    Corruption("S21", "another vocabulary", _set_decoder(vocab_size=511), None),
    Corruption("non-finite", "NaN", None, _nan),
    Corruption("constant", "zeros", None, _put(**{DOWN: np.zeros((64, 96), np.float32)})),
    Corruption("fresh", "drawn anew", None, _put(**{GATE: INITIAL}), "warning"),
    Corruption(
        "unexpected", "verifier_norm", None, _put(**{"verifier_norm.weight": noise("v", 64)})
    ),
    Corruption("shape", "head too short", None, lambda t: t.update({HEAD: t[HEAD][:-1]})),
]


@pytest.mark.parametrize("form", ["nested", "flat"])
@pytest.mark.parametrize("broke", CORRUPTIONS, ids=lambda broke: f"{broke.rule}-{broke.note}")
def test_each_corruption_is_found_by_its_rule(
    broken: Callable[[str, str], Path], originals: Path, form: str, broke: Corruption
) -> None:
    path = broken("llama", form)
    rule, severity = broke.rule, broke.severity
    if broke.config:
        edit_config(path, broke.config)
    if broke.tensors:
        edit_tensors(path, broke.tensors)
    verifier = load(originals, "llama")
    if rule == "S9":
        verifier = verifier.model_copy(update={"hidden_size": 128})
    report = check_drafter(path, verifier, deep=True)
    found = [f for f in report.findings if f.rule == rule and f.severity == severity]
    assert found, report.findings
    assert all(f.expected and f.found and f.consequence and f.fix for f in found)
    assert report.ok == (severity != "error")
    if severity == "error" and rule != "S9":
        with pytest.raises(CheckError, match=rule):
            require_sound(path, verifier, deep=True)


def test_norms_of_ones_and_biases_of_zeros_are_no_finding(
    broken: Callable[[str, str], Path],
) -> None:
    path = broken("llama", "nested")
    biases = {
        f"layers.0.self_attn.{name}_proj.bias": np.zeros(size, np.float32)
        for name, size in (("q", 64), ("k", 32), ("v", 32))
    }
    edit_config(path, _set_decoder(attention_bias=True))
    edit_tensors(path, _put(**biases, **{"norm.weight": np.ones(64, np.float32)}))
    assert check_drafter(path, None, deep=True).findings == ()


def test_a_missing_head_dim_is_found_where_hidden_over_heads_is_wrong(
    broken: Callable[[str, str], Path], originals: Path
) -> None:
    path = broken("kimi", "flat")
    edit_config(path, _unset("head_dim"))
    finding = check_drafter(path, load(originals, "kimi")).findings[0]
    assert finding.rule == "S1"
    assert "no head_dim, so 56 / 4 = 14" in finding.consequence
    assert finding.fix == "set head_dim to 16 in config.json"


def test_a_cut_head_says_what_vllm_would_do(broken: Callable[[str, str], Path]) -> None:
    path = broken("llama", "nested")
    edit_config(path, _set_decoder(head_dim=8))
    by_name = {f.subject: f for f in check_drafter(path, None).findings}
    query = by_name["layers.0.self_attn.q_proj.weight"]
    assert query.expected == f"[{HEADS * 8}, 128]"
    assert query.found == f"[{HEADS * 16}, 128]"
    assert "vLLM would cut q_proj" in query.consequence


def test_a_nested_drafter_without_norm_before_residual_is_doubtful(
    broken: Callable[[str, str], Path],
) -> None:
    path = broken("llama", "nested")
    edit_config(path, _unset("norm_before_residual"))
    assert [(f.rule, f.severity) for f in check_drafter(path, None).findings] == [
        ("S10", "warning")
    ]


def test_aux_ids_in_eagle_config_are_doubtful(broken: Callable[[str, str], Path]) -> None:
    path = broken("llama", "flat")
    edit_config(path, _in_eagle_config)
    assert [(f.rule, f.severity) for f in check_drafter(path, None).findings] == [
        ("S13", "warning")
    ]


def test_a_table_that_is_not_int64_is_found(broken: Callable[[str, str], Path]) -> None:
    path = broken("llama", "flat")
    edit_tensors(path, lambda t: t.update(d2t=t["d2t"].astype(np.float32)))
    assert [f.rule for f in check_drafter(path, None).findings] == ["S6"]


def test_precision_lost_to_the_verifiers_dtype_is_a_warning(
    tmp_path: Path,
) -> None:
    verifier = build_verifier(tmp_path / "v", dtype="bfloat16")
    path = build_drafter(tmp_path / "d", verifier)
    assert [(f.rule, f.severity) for f in check_drafter(path, verifier).findings] == [
        ("S23", "warning")
    ]


def test_a_window_beside_a_verifier_without_one_is_said(tmp_path: Path) -> None:
    verifier = build_verifier(tmp_path / "v")
    path = build_drafter(tmp_path / "d", verifier)
    edit_config(path, _set_decoder(layer_types=["sliding_attention"], sliding_window=64))
    (found,) = check_drafter(path, verifier).findings
    assert (found.rule, found.severity) == ("window-groups", "info")
    edit_config(verifier.path, _set(sliding_window=64))
    windowed = Verifier.load(str(verifier.path), settings_for(tmp_path))
    assert check_drafter(path, windowed).findings == ()


PARENT_CHANGES: list[tuple[str, str, Change]] = [
    ("S10", "error", _set(norm_before_residual=False)),
    ("S12", "error", _set(norm_output=True)),
    ("S14", "warning", _set(eagle_aux_hidden_state_layer_ids=[3, 15, 27])),
    ("S20", "warning", _set_decoder(layer_types=["sliding_attention"], sliding_window=64)),
    ("S24", "error", _set_decoder(hidden_act="gelu")),
    ("S24", "error", _set_decoder(rms_norm_eps=1e-6)),
    ("S24", "error", _set_decoder(logit_scale=0.5)),
]


@pytest.mark.parametrize(("rule", "severity", "change"), PARENT_CHANGES)
def test_a_child_that_computes_otherwise_than_its_parent_is_found(
    broken: Callable[[str, str], Path], originals: Path, rule: str, severity: str, change: Change
) -> None:
    path = broken("llama", "flat")
    edit_config(path, change)
    findings = check_drafter(path, None, originals / "llama-flat").findings
    assert [(f.rule, f.severity) for f in findings] == [(rule, severity)]


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_a_rope_other_than_the_parents_is_found(
    broken: Callable[[str, str], Path], originals: Path, form: str
) -> None:
    path = broken("llama", form)
    edit_config(path, _set_decoder(rope_theta=1e4, rope_parameters=None))
    findings = check_drafter(path, None, originals / f"llama-{form}").findings
    assert [(f.rule, f.severity) for f in findings] == [("S18", "error")]


def test_a_layer_drawn_anew_is_found_against_the_parent(
    broken: Callable[[str, str], Path], originals: Path
) -> None:
    path = broken("llama", "nested")
    edit_tensors(path, _put(**{DOWN: noise("other", 64, 96)}))
    report = check_drafter(path, None, originals / "llama-flat", deep=True)
    assert [(f.rule, f.subject) for f in report.of_severity("error")] == [("S25", DOWN)]


def test_a_head_regathered_for_a_new_vocabulary_is_not_called_drawn_anew(
    originals: Path, tmp_path: Path
) -> None:
    verifier = load(originals, "llama")
    path = build_drafter(tmp_path / "child", verifier)

    def regather(tensors: dict[str, Any]) -> None:
        _new_map(tensors)
        head = read_tensor(verifier.path, verifier.header(verifier.lm_head_key or ""))
        tensors["lm_head.weight"] = head[np.arange(DRAFT_VOCAB) + tensors["d2t"]]

    edit_tensors(path, regather)
    report = check_drafter(path, verifier, originals / "llama-nested", deep=True)
    assert report.findings == ()


def test_midlayer_in_a_nested_drafter_is_doubtful_only_for_serving(
    broken: Callable[[str, str], Path], originals: Path
) -> None:
    path = broken("llama", "nested")
    shutil.copy(originals / "llama-flat" / "model.safetensors", path)
    found = check_drafter(path, None).findings
    assert [(f.rule, f.severity) for f in found] == [("S25", "warning")]
    assert "harness convert" in found[0].fix
    assert check_drafter(path, None, purpose="finetune").findings == ()


def test_a_model_prefix_is_an_error_for_serving_and_mapped_for_finetuning(
    broken: Callable[[str, str], Path],
) -> None:
    path = broken("llama", "nested")

    def prefix(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.startswith("layers.")]:
            tensors[f"model.{name}"] = tensors.pop(name)

    edit_tensors(path, prefix)
    found = check_drafter(path, None).findings
    assert [f.rule for f in found] == ["prefix"]
    assert "harness convert" in found[0].fix
    assert check_drafter(path, None, purpose="finetune").findings == ()


def test_one_tensor_under_two_spellings_is_an_error(broken: Callable[[str, str], Path]) -> None:
    path = broken("llama", "nested")
    edit_tensors(path, lambda t: t.update({f"model.{DOWN}": t[DOWN]}))
    report = check_drafter(path, None, purpose="finetune")
    assert [f.rule for f in report.of_severity("error")] == ["prefix"]


def test_a_verifier_named_by_another_path_is_no_more_than_an_info(
    originals: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(originals / "llama", tmp_path / "moved"))
    verifier = Verifier.load(str(moved), settings_for(tmp_path))
    findings = check_drafter(originals / "llama-nested", verifier, deep=True).findings
    assert [(f.rule, f.severity) for f in findings] == [("S21", "info")]


def test_a_folder_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        check_drafter(tmp_path / "nothing", None)
