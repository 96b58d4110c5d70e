import hashlib
import json
import struct
from pathlib import Path

import pytest

from eval.architecture import digest_tensors, find_differences
from eval.errors import SpecError

CONFIG = {"draft_vocab_size": 4, "transformer_layer_config": {"head_dim": 2, "rope_theta": 1.0}}


def write_drafter(
    folder: Path,
    config: dict[str, object],
    shapes: dict[str, tuple[int, ...]],
    fill: bytes = b"\1",
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        offsets = [len(data), len(data) + size]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        data += fill * size
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return folder


def test_other_values_names_and_versions_are_the_same_architecture(tmp_path: Path) -> None:
    one = write_drafter(tmp_path / "a", CONFIG, {"fc.weight": (2, 6)})
    config = {**CONFIG, "speculators_version": "9", "dtype": "float32"}
    other = write_drafter(tmp_path / "b", config, {"fc.weight": (2, 6)}, fill=b"\2")
    assert find_differences(one, other) == ()
    assert digest_tensors(one) != digest_tensors(other)


@pytest.mark.parametrize(
    ("config", "tensors", "named"),
    [
        ({**CONFIG, "draft_vocab_size": 5}, {"fc.weight": (2, 6)}, "draft_vocab_size"),
        (
            {**CONFIG, "transformer_layer_config": {"head_dim": 2, "rope_theta": 2.0}},
            {"fc.weight": (2, 6)},
            "transformer_layer_config.rope_theta",
        ),
        ({**CONFIG, "norm_before_fc": True}, {"fc.weight": (2, 6)}, "norm_before_fc"),
        (CONFIG, {"fc.weight": (2, 9)}, "fc.weight: (2, 6) and (2, 9)"),
        (CONFIG, {"fc.weight": (2, 6), "norm.weight": (2,)}, "norm.weight: absent and (2,)"),
    ],
)
def test_what_changes_the_arithmetic_is_named(
    tmp_path: Path, config: dict[str, object], tensors: dict[str, tuple[int, ...]], named: str
) -> None:
    one = write_drafter(tmp_path / "a", CONFIG, {"fc.weight": (2, 6)})
    other = write_drafter(tmp_path / "b", config, tensors)
    (difference,) = find_differences(one, other)
    assert named in difference


def test_the_digest_is_of_names_shapes_and_bytes(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "a", CONFIG, {"w": (3,)})
    inner = hashlib.sha256(b"\1" * 12).hexdigest()
    assert digest_tensors(folder) == hashlib.sha256(f"w F32 [3] {inner}".encode()).hexdigest()


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SpecError, match="expected safetensors"):
        find_differences(tmp_path, tmp_path)
