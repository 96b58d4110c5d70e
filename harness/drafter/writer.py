"""Writing a drafter's folder, whole or not at all: one streamed safetensors file and its config."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.drafter.tensors import DTYPE_BYTES, TensorHeader, inside
from harness.errors import CheckError, ConfigError, PrerequisiteError

WEIGHTS_NAME = "model.safetensors"
_COPY_BYTES = 16 << 20
_DTYPES = {"bool": "BOOL", "int64": "I64", "float32": "F32", "float16": "F16", "uint16": "BF16"}
"""numpy name -> stored dtype; numpy has no bfloat16, so its bits travel as uint16."""


class Stored(NamedTuple):
    """A tensor to be copied byte by byte from another file."""

    folder: Path
    header: TensorHeader


Source = Stored | npt.NDArray[Any]


def write_drafter(
    out_dir: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Source],
    files: Iterable[Path] = (),
) -> None:
    """Writes `config.json` and `model.safetensors` into a new folder.

    Args:
        out_dir: Must not exist, or be empty; it appears complete or not at all.
        config: The config document.
        tensors: Name -> where its bytes come from; uint16 arrays are taken for BF16 bits.
        files: Copied beside them.

    Raises:
        ConfigError: The folder has something in it.
        PrerequisiteError: The disk is too full.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise ConfigError(
            f"expected a new or empty folder, found something in {out_dir}",
            "name another folder, or delete this one",
        )
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    _require_space(out_dir.parent, sum(_num_bytes(source) for source in tensors.values()))
    work = Path(tempfile.mkdtemp(dir=out_dir.parent, prefix=f".{out_dir.name}."))
    try:
        work.chmod(0o755)
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
        (work / "config.json").write_text(text + "\n", encoding="utf-8")
        with (work / WEIGHTS_NAME).open("wb") as stream:
            _write_tensors(stream, tensors)
        for path in files:
            shutil.copyfile(path, work / path.name)
        if out_dir.exists():
            out_dir.rmdir()
        work.rename(out_dir)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _write_tensors(stream: BinaryIO, tensors: Mapping[str, Source]) -> None:
    """Header, then data in its order: wide types first, so that every tensor is aligned."""
    names = sorted(tensors, key=lambda name: (-DTYPE_BYTES[_dtype(tensors[name])], name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in names:
        source = tensors[name]
        end = position + _num_bytes(source)
        shape = source.header.shape if isinstance(source, Stored) else source.shape
        header[name] = {
            "dtype": _dtype(source),
            "shape": list(shape),
            "data_offsets": [position, end],
        }
        position = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    stream.write(len(raw).to_bytes(8, "little") + raw)
    for name in names:
        for piece in _pieces(tensors[name]):
            stream.write(piece)


def _pieces(source: Source) -> Iterator[bytes | memoryview]:
    if not isinstance(source, Stored):
        yield np.ascontiguousarray(source).data.cast("B") if source.size else b""
        return
    left = source.header.num_bytes
    with inside(source.folder, source.header.file).open("rb") as stream:
        stream.seek(source.header.start)
        while left:
            piece = stream.read(min(left, _COPY_BYTES))
            if not piece:
                raise CheckError(f"{source.header.file} became shorter while it was copied")
            left -= len(piece)
            yield piece


def _dtype(source: Source) -> str:
    return source.header.dtype if isinstance(source, Stored) else _DTYPES[source.dtype.name]


def _num_bytes(source: Source) -> int:
    return source.header.num_bytes if isinstance(source, Stored) else source.nbytes


def _require_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _COPY_BYTES:
        raise PrerequisiteError(
            f"{folder}: expected {num_bytes / 1e9:.1f} GB of free disk, found {free / 1e9:.1f} GB",
            "free some space, or name a folder on another disk",
        )
