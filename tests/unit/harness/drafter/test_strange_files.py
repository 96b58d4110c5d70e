"""Files as an attacker or an accident would leave them: one finding each, no crash, no hang."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.drafters import build_drafter, build_verifier, decoder, edit_config, edit_tensors, shard

from harness.drafter.checks import check_drafter
from harness.drafter.convert import convert_drafter
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import HarnessError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return build_verifier(tmp_path / "verifier")


@pytest.fixture
def path(tmp_path: Path, verifier: Verifier) -> Path:
    return build_drafter(tmp_path / "drafter", verifier)


def a_circle_of_links(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / WEIGHTS).symlink_to(WEIGHTS)


def a_config_in_a_circle(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").symlink_to("config.json")


def a_pipe(path: Path) -> None:
    (path / WEIGHTS).unlink()
    os.mkfifo(path / WEIGHTS)


def a_device(path: Path) -> None:
    (path / WEIGHTS).unlink()
    (path / WEIGHTS).symlink_to("/dev/zero")


def a_folder_named_as_weights(path: Path) -> None:
    (path / "more.safetensors").mkdir()


def a_name_that_is_no_text(path: Path) -> None:
    (path / os.fsdecode(b"\xff.safetensors")).write_bytes(b"x")


def rename_shard(path: Path, name: str) -> None:
    shard(path)
    document = json.loads((path / INDEX).read_text())
    document["weight_map"]["d2t"] = name
    (path / INDEX).write_text(json.dumps(document))


def a_nul_in_a_shards_name(path: Path) -> None:
    rename_shard(path, "a\0.safetensors")


def a_shard_of_a_very_long_name(path: Path) -> None:
    rename_shard(path, "a" * 5000 + ".safetensors")


def half_a_surrogate_pair(path: Path) -> None:
    edit_config(path, lambda config: config.update(architectures=["\ud800"]))


def a_number_of_ten_thousand_digits(path: Path) -> None:
    (path / "config.json").write_text('{"hidden_size": ' + "9" * 10_000 + "}")


def an_infinite_epsilon(path: Path) -> None:
    edit_config(path, lambda config: decoder(config).update(rms_norm_eps=float("inf")))


def a_rope_that_is_no_number(path: Path) -> None:
    rope = {"rope_theta": float("nan")}
    edit_config(path, lambda config: decoder(config).update(rope_parameters=rope))


STRANGE = [
    a_circle_of_links, a_config_in_a_circle, a_pipe, a_device, a_folder_named_as_weights,
    a_name_that_is_no_text, a_nul_in_a_shards_name, a_shard_of_a_very_long_name,
    half_a_surrogate_pair, a_number_of_ten_thousand_digits, an_infinite_epsilon,
    a_rope_that_is_no_number,
]  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("damage", STRANGE, ids=lambda damage: damage.__name__)
def test_a_strange_folder_is_one_finding(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    report = check_drafter(path, None, deep=True)
    assert [finding.rule for finding in report.findings] == ["unreadable"]


def test_an_unreadable_parent_is_named_as_the_parent(
    tmp_path: Path, path: Path, verifier: Verifier
) -> None:
    parent = build_drafter(tmp_path / "parent", verifier)
    (parent / "config.json").write_text("{")
    (finding,) = check_drafter(path, verifier, parent).findings
    assert finding.rule == "unreadable"
    assert finding.subject == f"parent {parent}: config.json"


def test_a_scalar_where_a_matrix_should_be_is_a_finding(path: Path) -> None:
    edit_tensors(path, lambda t: t.update({"layers.0.self_attn.q_proj.weight": np.float32(1)}))
    assert [finding.rule for finding in check_drafter(path, None).findings] == ["S1"]


VALUES: tuple[Any, ...] = (
    None, 0, -1, 1, 3, 10**12, 1.5, float("nan"), "x", "", [], [1, 2, 3, 4], ["a"], [None], {},
    {"a": 1}, True, "qwen3", "\ud800", {"full_attention": {"rope_theta": 5}}, {"rope_theta": "x"},
)  # fmt: skip
KEYS = (
    "quantization_config", "kv_lora_rank", "num_aux_hidden_states", "eagle_config",
    "target_hidden_size", "layer_types", "sliding_window", "converted_from", "rope_scaling",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(150))
def test_any_config_is_judged_or_refused(
    tmp_path: Path, path: Path, verifier: Verifier, seed: int
) -> None:
    """Two keys of a healthy config at random get a value at random."""
    chance = np.random.default_rng(seed)

    def change(config: dict[str, Any]) -> None:
        part = (config, decoder(config))[chance.integers(2)]
        keys = (*part, *KEYS)
        part[keys[chance.integers(len(keys))]] = VALUES[chance.integers(len(VALUES))]

    edit_config(path, change)
    edit_config(path, lambda config: isinstance(decoder(config), dict) and change(config))
    report = check_drafter(path, verifier, deep=True)
    assert json.loads(report.model_dump_json())["ok"] == report.ok
    for work in (
        lambda: Drafter.load(path),
        lambda: convert_drafter(path, "flat", tmp_path / "flat"),
    ):
        with suppress(HarnessError):
            work()
