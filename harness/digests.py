"""Content digests and atomic writes: how any room names bytes and puts them on disk."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from eval.digests import digest_json
from eval.files import write_atomic

__all__ = [
    "FileDigest",
    "FolderDigest",
    "digest_files",
    "digest_json",
    "join_digests",
    "sha256_bytes",
    "sha256_file",
    "write_atomic",
]

_CHUNK_BYTES = 1 << 20


class FileDigest(BaseModel):
    """One file of a folder: its path relative to the folder, its size and SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    num_bytes: int
    sha256: str


class FolderDigest(BaseModel):
    """Files sorted by name and one root digest over (name, size, SHA-256) of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[FileDigest, ...]
    root: str

    @property
    def num_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.num_bytes for file in self.files)


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, read in 1 MiB pieces; `on_bytes` is told the size of each piece."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()


def sha256_bytes(raw: bytes) -> str:
    """SHA-256 of bytes in memory."""
    return hashlib.sha256(raw).hexdigest()


def digest_files(
    folder: Path, names: Iterable[str], on_bytes: Callable[[int], None] | None = None
) -> FolderDigest:
    """Digests the named files of a folder; the root changes with any byte, name or size."""
    return join_digests(
        FileDigest(
            name=name,
            num_bytes=(folder / name).stat().st_size,
            sha256=sha256_file(folder / name, on_bytes),
        )
        for name in sorted(names)
    )


def join_digests(digests: Iterable[FileDigest]) -> FolderDigest:
    """The digest of a folder whose files were digested one by one, in whatever order."""
    files = tuple(sorted(digests, key=lambda file: file.name))
    return FolderDigest(files=files, root=digest_json([file.model_dump() for file in files]))
