"""Tensor values out of safetensors files with numpy alone: whole, in pieces, or by rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.drafter.tensors import TensorHeader, inside

_CHUNK_ELEMENTS = 8 << 20
_BLOCK_BYTES = 16 << 20

_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4",
    "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "BF16": "<u2",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip


FLOATS = frozenset(("F16", "BF16", "F32", "F64"))
"""Stored dtypes whose values are numbers as they stand; 8-bit floats come with scales."""


def read_tensor(folder: Path, header: TensorHeader) -> npt.NDArray[Any]:
    """The whole tensor as it is stored; BF16 comes as its 16 bits (see `as_float32`)."""
    raw = np.fromfile(
        inside(folder, header.file), dtype=np.uint8, count=header.num_bytes, offset=header.start
    )
    return raw.view(_NUMPY[header.dtype]).reshape(header.shape)


def iter_chunks(folder: Path, header: TensorHeader) -> Iterator[npt.NDArray[Any]]:
    """The tensor's elements in stored order, as flat pieces of 8 Mi elements but for the last."""
    dtype = np.dtype(_NUMPY[header.dtype])
    left, offset = header.num_elements, header.start
    path = inside(folder, header.file)
    with path.open("rb") as stream:
        stream.seek(offset)
        while left:
            count = min(left, _CHUNK_ELEMENTS)
            yield np.fromfile(stream, dtype=dtype, count=count)
            left -= count


class Matrix(NamedTuple):
    """A matrix on disk, read by rows."""

    folder: Path
    header: TensorHeader

    def read(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Some rows as float32, shape [rows, columns]."""
        return read_rows(self.folder, self.header, rows)

    def blocks(self) -> Iterator[npt.NDArray[np.int64]]:
        """Row numbers, in blocks that take at most 16 MiB as float32."""
        num_rows, num_columns = self.header.shape
        step = max(1, _BLOCK_BYTES // (4 * num_columns))
        for start in range(0, num_rows, step):
            yield np.arange(start, min(start + step, num_rows))


def read_rows(
    folder: Path, header: TensorHeader, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Some rows of a matrix as float32; only the pages that hold them are read."""
    dtype = np.dtype(_NUMPY[header.dtype])
    mapped: npt.NDArray[Any] = np.memmap(
        inside(folder, header.file), dtype=np.uint8, mode="r",
        offset=header.start, shape=(header.num_bytes,),
    )  # fmt: skip
    matrix = mapped.view(dtype).reshape(header.shape)
    return as_float32(np.asarray(matrix[rows]), header.dtype)


def as_float32(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Stored values as float32: BF16 bits are widened exactly, everything else is cast."""
    if dtype == "BF16":
        wide: npt.NDArray[np.uint32] = np.left_shift(values, np.uint32(16), dtype=np.uint32)
        return wide.view(np.float32)
    return values.astype(np.float32)


def from_float32(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Float32 as it is stored: BF16 bits are rounded to nearest even, the rest is cast."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return values.astype(_NUMPY[dtype])
