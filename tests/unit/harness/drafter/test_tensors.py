"""Bad input: every kind of broken folder is one finding, nothing is executed, nothing crashes."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.drafters import (
    build_drafter,
    build_verifier,
    decoder,
    edit_config,
    edit_tensors,
    shard,
)
from safetensors.numpy import load_file, save_file

from harness.drafter.checks import check_drafter
from harness.drafter.drafter import Drafter, drafter_digest
from harness.drafter.tensors import UnreadableError, read_folder_headers
from harness.drafter.values import Matrix, as_float32, from_float32, read_tensor
from harness.errors import CheckError, ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return build_drafter(tmp_path / "drafter", build_verifier(tmp_path / "verifier"))


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = path / "model.safetensors"
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def write_raw(path: Path, header: bytes, length: int | None = None) -> None:
    size = len(header) if length is None else length
    (path / "model.safetensors").write_bytes(struct.pack("<Q", size) + header)


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def truncate_to_nothing(path: Path) -> None:
    os.truncate(path / "model.safetensors", 3)


def overlap(path: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        header["norm.weight"]["data_offsets"] = header["layers.0.hidden_norm.weight"][
            "data_offsets"
        ]

    rewrite_header(path, change)


def wrong_size(path: Path) -> None:
    rewrite_header(path, lambda h: h["norm.weight"].update(shape=[63]))


def negative(path: Path) -> None:
    rewrite_header(path, lambda h: h["norm.weight"].update(shape=[-64]))


def unknown_dtype(path: Path) -> None:
    rewrite_header(path, lambda h: h["norm.weight"].update(dtype="Q4"))


def entry_is_a_list(path: Path) -> None:
    rewrite_header(path, lambda h: h.update({"norm.weight": [1, 2]}))


def huge_header(path: Path) -> None:
    """A sparse file whose header claims 100 MB, and has them."""
    write_raw(path, b"", 100_000_000)
    os.truncate(path / "model.safetensors", 100_000_100)


def longer_than_the_file(path: Path) -> None:
    write_raw(path, b"{}", 1 << 62)


def not_json(path: Path) -> None:
    write_raw(path, b"\xff" * 64)


def deeply_nested(path: Path) -> None:
    write_raw(path, b'{"a":' * 100_000)


def a_key_twice(path: Path) -> None:
    write_raw(path, b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{}}')


def a_link_out_of_the_folder(path: Path) -> None:
    file = path / "model.safetensors"
    file.rename(path.parent / "elsewhere.safetensors")
    file.symlink_to(path.parent / "elsewhere.safetensors")


def a_config_linked_out(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").symlink_to("/etc/hostname")


def a_dangling_link(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").symlink_to(path / "nothing")


def a_missing_shard(path: Path) -> None:
    shard(path)
    (path / "model-00002-of-00002.safetensors").unlink()


def a_shard_outside(path: Path) -> None:
    shard(path)
    index = path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["d2t"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(document))


def an_index_that_lists_too_little(path: Path) -> None:
    shard(path)
    index = path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    del document["weight_map"]["norm.weight"]
    index.write_text(json.dumps(document))


def an_index_without_a_map(path: Path) -> None:
    (path / "model.safetensors.index.json").write_text("{}")


def the_same_tensor_in_two_files(path: Path) -> None:
    (path / "old.safetensors").write_bytes((path / "model.safetensors").read_bytes())


def no_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def no_config(path: Path) -> None:
    (path / "config.json").unlink()


def a_config_that_is_a_list(path: Path) -> None:
    (path / "config.json").write_text("[]")


def a_config_that_is_text(path: Path) -> None:
    (path / "config.json").write_text("head_dim: 64")


def a_number_as_text(path: Path) -> None:
    edit_config(path, lambda c: decoder(c).update(hidden_size="64"))


def a_flag_for_a_number(path: Path) -> None:
    edit_config(path, lambda c: decoder(c).update(num_attention_heads=True))


def no_heads(path: Path) -> None:
    edit_config(path, lambda c: decoder(c).update(num_attention_heads=0))


def absurdly_many_layers(path: Path) -> None:
    edit_config(path, lambda c: decoder(c).update(num_hidden_layers=10**9))


def ids_as_text(path: Path) -> None:
    edit_config(path, lambda c: c.update(eagle_aux_hidden_state_layer_ids="2,15,27"))


def a_list_for_the_decoder(path: Path) -> None:
    edit_config(path, lambda c: c.update(transformer_layer_config=[1]))


def a_flag_as_text(path: Path) -> None:
    edit_config(path, lambda c: c.update(norm_before_residual="yes"))


def rope_as_text(path: Path) -> None:
    edit_config(path, lambda c: decoder(c).update(rope_parameters="default"))


def another_algorithm(path: Path) -> None:
    edit_config(path, lambda c: c.update(speculators_model_type="dflash"))


BROKEN = [
    truncate, truncate_to_nothing, overlap, wrong_size, negative, unknown_dtype, entry_is_a_list,
    huge_header, longer_than_the_file, not_json, deeply_nested, a_key_twice,
    a_link_out_of_the_folder, a_config_linked_out, a_dangling_link, a_missing_shard,
    a_shard_outside, an_index_that_lists_too_little, an_index_without_a_map,
    the_same_tensor_in_two_files, no_weights, no_config, a_config_that_is_a_list,
    a_config_that_is_text, a_number_as_text, a_flag_for_a_number, no_heads, ids_as_text,
    absurdly_many_layers,
    a_list_for_the_decoder, a_flag_as_text, rope_as_text, another_algorithm,
]  # fmt: skip


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_an_unreadable_drafter_is_one_finding(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    report = check_drafter(path, None, deep=True)
    assert [f.rule for f in report.findings] == ["unreadable"]
    assert not report.ok
    with pytest.raises(CheckError):
        Drafter.load(path)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch exploded",))


def test_pickle_weights_are_refused_unopened(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    finding = check_drafter(path, None, deep=True).findings[0]
    assert finding.rule == "unreadable"
    assert "pytorch_model.bin" in finding.found
    assert "re-save it with safetensors" in finding.fix
    assert not (tmp_path / "exploded").exists()


@pytest.mark.timeout(20)
def test_a_header_of_very_many_tensors_is_judged_in_seconds(path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write_raw(path, json.dumps({f"model.x{i}": empty for i in range(5_000)}).encode())
    report = check_drafter(path, None, deep=True)
    assert {"S3", "unexpected"} <= {f.rule for f in report.findings}


def test_links_inside_a_hub_cache_are_allowed(path: Path) -> None:
    cache = path.parent / "models--org--drafter"
    snapshot, blobs = cache / "snapshots" / "abc", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (path / name).rename(blobs / name)
        (snapshot / name).symlink_to(Path("../../blobs") / name)
    assert check_drafter(snapshot, None, deep=True).findings == ()


def test_headers_and_values_agree_with_the_safetensors_library(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = {
        "a": rng.normal(size=(5, 3)).astype(np.float32),
        "b": np.arange(7),
        "c": np.array([True, False]),
        "d": np.zeros((0, 4), np.float16),
    }
    save_file(given, tmp_path / "x.safetensors")
    headers = read_folder_headers(tmp_path)
    assert set(headers) == set(given)
    for name, value in given.items():
        np.testing.assert_array_equal(read_tensor(tmp_path, headers[name]), value)
    rows = np.array([4, 0])
    np.testing.assert_array_equal(Matrix(tmp_path, headers["a"]).read(rows), given["a"][rows])


def test_what_the_writer_writes_the_safetensors_library_reads(path: Path) -> None:
    loaded = load_file(path / "model.safetensors")
    for name, header in read_folder_headers(path).items():
        np.testing.assert_array_equal(loaded[name], read_tensor(path, header))


def test_bfloat16_widens_exactly_and_rounds_to_nearest_even() -> None:
    exact = np.array([1.0, -2.5, 0.0, 3.0e38], np.float32)
    bits = from_float32(exact, "BF16")
    np.testing.assert_allclose(as_float32(bits, "BF16"), exact, rtol=2**-8)
    ties = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    assert from_float32(ties, "BF16").tolist() == [0x3F80, 0x3F82]


def test_the_digest_changes_with_any_byte_of_config_or_weights(path: Path) -> None:
    before = drafter_digest(path).root
    (path / "optimizer_state_dict.pt").write_bytes(b"x")
    assert drafter_digest(path).root == before
    edit_config(path, lambda c: c.update(norm_output=True))
    changed = drafter_digest(path).root
    assert changed != before
    edit_tensors(path, lambda t: t["norm.weight"].__setitem__(0, 0.5))
    assert drafter_digest(path).root not in {before, changed}


def test_a_digest_of_no_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        drafter_digest(tmp_path)


def test_facts_come_from_headers_alone(path: Path) -> None:
    """A 10 GB tensor is described without a byte of it being there."""
    sparse = {"dtype": "F32", "shape": [50_000, 50_000], "data_offsets": [0, 10_000_000_000]}
    write_raw(path, json.dumps({"big": sparse}).encode())
    file = path / "model.safetensors"
    os.truncate(file, file.stat().st_size + 10_000_000_000)
    drafter = Drafter.load(path)
    assert drafter.num_parameters == 2_500_000_000
    assert isinstance(check_drafter(path, None).findings, tuple)


def test_an_unreadable_error_names_both_sides(path: Path) -> None:
    truncate(path)
    with pytest.raises(UnreadableError, match=r"expected .* found .*"):
        read_folder_headers(path)
