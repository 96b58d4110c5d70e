"""Safetensors folders read as data: headers first, bytes on request, garbage refused.

The one place that parses a safetensors header or a shard index. Nothing is executed, no torch is
imported, and a file is never read past what its header names.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.config.load import Frozen
from harness.errors import CheckError

MAX_HEADER_BYTES = 16 << 20
"""A header names tensors; 16 MiB is some 100,000 of them. The format itself allows 100 MB."""
_MAX_JSON_BYTES = 64 << 20
_LENGTH_BYTES = 8

INDEX_NAME = "model.safetensors.index.json"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_COPY = "copy the file again from its source, or re-save it with safetensors"
_RESAVE = "if you trust the file, load it once and re-save it with safetensors"

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
    "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class UnreadableError(CheckError):
    """A file that cannot be taken for what it should be; `subject` names it."""

    def __init__(self, subject: str, expected: str, found: str, fix: str) -> None:
        super().__init__(f"{subject}: expected {expected}, found {found}", fix)
        self.subject, self.expected, self.found, self.fix = subject, expected, found, fix


class TensorHeader(Frozen):
    """What a header says of one tensor. `start` is its first byte's offset in the file."""

    shape: tuple[int, ...]
    dtype: str
    file: str
    start: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return self.num_bytes // DTYPE_BYTES[self.dtype]


def read_folder_headers(folder: Path) -> dict[str, TensorHeader]:
    """Headers of every tensor in a folder: the shards its index names, else all safetensors.

    Raises:
        UnreadableError: No safetensors, a bad header, an index that does not fit its shards, a
            tensor in two files, a link that leaves the folder.
    """
    index_path = folder / INDEX_NAME
    if index_path.exists():
        return _read_indexed(folder, read_weight_map(index_path))
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise _no_weights(folder)
    tensors: dict[str, TensorHeader] = {}
    for name in files:
        for key, header in read_file_headers(folder, name).items():
            if key in tensors:
                found = f"in both {tensors[key].file} and {name}"
                raise UnreadableError(key, "a tensor in one file", found, "delete the stale file")
            tensors[key] = header
    return tensors


def read_weight_map(index_path: Path) -> dict[str, str]:
    """Tensor name -> shard file name, from a shard index."""
    document = read_json_object(index_path)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise UnreadableError(
            index_path.name, "a weight_map of tensor to file name", "none", "re-save the folder"
        )
    for shard in set(weight_map.values()):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UnreadableError(
                index_path.name, "shards that are safetensors files in this folder",
                repr(shard), "re-save the folder",
            )  # fmt: skip
    return weight_map


def read_file_headers(folder: Path, name: str) -> dict[str, TensorHeader]:
    """Headers of one safetensors file, every offset checked against the file's true size."""
    path = inside(folder, name)
    size = path.stat().st_size
    with path.open("rb") as stream:
        raw_length = stream.read(_LENGTH_BYTES)
        length = int.from_bytes(raw_length, "little")
        if len(raw_length) < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            found = f"{size} bytes, header length {length}"
            raise UnreadableError(name, "a whole safetensors file", found, _COPY)
        if length > MAX_HEADER_BYTES:
            found = f"{length} bytes"
            expected = f"a header of at most {MAX_HEADER_BYTES} bytes"
            raise UnreadableError(name, expected, found, _COPY)
        document = _parse_json(stream.read(length), name)
    document.pop("__metadata__", None)
    headers = {key: _parse_entry(key, entry, name) for key, entry in document.items()}
    _require_coverage(headers, name, size - _LENGTH_BYTES - length)
    base = _LENGTH_BYTES + length
    return {
        key: header.model_copy(update={"start": header.start + base})
        for key, header in headers.items()
    }


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object of sane size; a duplicate key, a list or garbage is refused."""
    inside(path.parent, path.name)
    if path.stat().st_size > _MAX_JSON_BYTES:
        found = f"{path.stat().st_size} bytes"
        raise UnreadableError(path.name, "a JSON file below 64 MiB", found, "re-save the folder")
    return _parse_json(path.read_bytes(), path.name)


def inside(folder: Path, name: str) -> Path:
    """The real path of a file in a folder; a link that leaves the folder is refused.

    The links of a Hugging Face cache (`snapshots/<revision>/x -> ../../blobs/<hash>`) are allowed.
    """
    try:
        home, path = folder.resolve(), (folder / name).resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        # No right to look, a circle of links, a name that cannot be.
        expected = f"a file in {folder}"
        raise UnreadableError(name, expected, str(error)[:120], "complete the folder") from error
    if not is_file:
        raise UnreadableError(name, f"a file in {folder}", "none", "complete the folder")
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(path.is_relative_to(root) for root in allowed):
        raise UnreadableError(
            name, "a file inside the folder", f"a link to {path}", "replace the link by the file"
        )
    return path


def _read_indexed(folder: Path, weight_map: dict[str, str]) -> dict[str, TensorHeader]:
    shards = {shard: read_file_headers(folder, shard) for shard in sorted(set(weight_map.values()))}
    tensors: dict[str, TensorHeader] = {}
    for shard, headers in shards.items():
        listed = {key for key, owner in weight_map.items() if owner == shard}
        _require_equal_names(shard, listed, headers)
        tensors |= headers
    return tensors


def _require_equal_names(shard: str, listed: set[str], found: Iterable[str]) -> None:
    names = set(found)
    if listed == names:
        return
    lacking, extra = sorted(listed - names), sorted(names - listed)
    text = f"lacking {lacking[:3]}" if lacking else f"also {extra[:3]}"
    raise UnreadableError(
        shard, "the tensors that the index names", text, "re-save the folder with its index"
    )


def _parse_json(raw: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys)
        if b"\\u" in raw:
            # Half a surrogate pair is legal JSON, but no text that can be written again.
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        found = str(error)[:120]
        raise UnreadableError(name, "a JSON object", found, _COPY) from error
    if not isinstance(document, dict):
        found = type(document).__name__
        raise UnreadableError(name, "a JSON object", found, _COPY)
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key occurs twice")
    return document


def _parse_entry(key: str, entry: object, file: str) -> TensorHeader:
    """One header entry; `start` is still relative to the data section."""
    expected = "a known dtype, a shape and offsets that agree"
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[index]
        is_sound = all(type(n) is int and n >= 0 for n in (begin, end, *shape))
        num_bytes = math.prod(shape) * DTYPE_BYTES[dtype] if is_sound else -1
    except (KeyError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {str(error)[:100]}"
        raise UnreadableError(f"{file}: {key[:100]}", expected, found, _COPY) from error
    if not is_sound or end - begin != num_bytes:
        found = f"{dtype} {str(shape)[:60]} at {begin}..{end}"
        raise UnreadableError(f"{file}: {key[:100]}", expected, found, _COPY)
    return TensorHeader(
        shape=tuple(shape), dtype=dtype, file=file, start=begin, num_bytes=num_bytes
    )


def _require_coverage(headers: dict[str, TensorHeader], name: str, num_bytes: int) -> None:
    """Tensors must lie end to end and fill the file: no overlap, no hole, no truncation."""
    position = 0
    for key, header in sorted(headers.items(), key=lambda item: (item[1].start, item[1].num_bytes)):
        if header.start != position:
            word = "overlaps the tensor before it" if header.start < position else "leaves a hole"
            raise UnreadableError(
                f"{name}: {key[:100]}", f"data at {position}", f"{header.start}: it {word}",
                _COPY,
            )  # fmt: skip
        position += header.num_bytes
    if position != num_bytes:
        expected = f"{position} bytes of tensor data"
        raise UnreadableError(name, expected, f"{num_bytes}", _COPY)


def _no_weights(folder: Path) -> UnreadableError:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLE_SUFFIXES)
    if pickles:
        found = f"pickle files only ({', '.join(pickles[:3])}), which can run code when loaded"
        return UnreadableError(str(folder), "safetensors weights", found, _RESAVE)
    return UnreadableError(str(folder), "safetensors weights", "none", "check the path")
