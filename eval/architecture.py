"""Whether two drafter folders are one architecture, and digests of their tensors.

Reads config.json and safetensors headers only; needs neither torch nor vLLM.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from eval.errors import SpecError

# Keys of config.json that change nothing in the arithmetic of a served drafter.
_IGNORED = {
    "_name_or_path",
    "auto_map",
    "dtype",
    "embed_requires_grad",
    "speculators_config",
    "speculators_version",
    "torch_dtype",
    "transformers_version",
}
_CHUNK_BYTES = 1 << 20


class TensorSlot(NamedTuple):
    """Where one tensor lies: its dtype and shape, its file and the byte range in it."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    end: int


def find_differences(one: Path, other: Path) -> tuple[str, ...]:
    """What keeps two drafters from being served by one engine in turn; empty if nothing does.

    Config values (but for names and versions), tensor names and shapes must agree. Element types
    and all values may differ.

    Raises:
        SpecError: A folder has no readable config.json or safetensors.
    """
    old, new = flat_config(one), flat_config(other)
    found = [
        f"config {key}: {old.get(key)!r} and {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    left, right = read_slots(one), read_slots(other)
    for name in sorted(left.keys() | right.keys()):
        shapes = [slots[name].shape if name in slots else "absent" for slots in (left, right)]
        if shapes[0] != shapes[1]:
            found.append(f"tensor {name}: {shapes[0]} and {shapes[1]}")
    return tuple(found)


def flat_config(folder: Path) -> dict[str, Any]:
    """config.json with dotted keys, without what changes nothing."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise SpecError(f"expected a drafter's config in {path}: {error}") from error
    kept = {key: value for key, value in config.items() if key not in _IGNORED}
    return dict(_flatten(kept, ""))


def read_slots(folder: Path) -> dict[str, TensorSlot]:
    """All tensors of a folder's safetensors files by name.

    Source of the format: 8 bytes little-endian header size, JSON header, then the data.
    """
    slots: dict[str, TensorSlot] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            try:
                (size,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(size))
            except (struct.error, ValueError) as error:
                raise SpecError(f"{path} is no safetensors file: {error}") from error
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = (8 + size + offset for offset in entry["data_offsets"])
                slots[name] = TensorSlot(entry["dtype"], tuple(entry["shape"]), path, start, end)
    if not slots:
        raise SpecError(f"expected safetensors weights in {folder}, found none")
    return slots


def digest_tensors(folder: Path) -> str:
    """SHA-256 over name, dtype, shape and bytes of every tensor, in the order of names."""
    return combine_digests(
        {name: (slot, _digest_bytes(slot)) for name, slot in read_slots(folder).items()}
    )


def combine_digests(tensors: Mapping[str, tuple[TensorSlot, str]]) -> str:
    """One digest out of those of the tensors' bytes."""
    lines = [
        f"{name} {slot.dtype} {list(slot.shape)} {digest}"
        for name, (slot, digest) in sorted(tensors.items())
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _digest_bytes(slot: TensorSlot) -> str:
    digest = hashlib.sha256()
    with slot.path.open("rb") as stream:
        stream.seek(slot.start)
        left = slot.end - slot.start
        while left > 0 and (chunk := stream.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _flatten(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        return [(prefix, value)]
    return [
        item
        for key, inner in value.items()
        for item in _flatten(inner, f"{prefix}.{key}" if prefix else key)
    ]
