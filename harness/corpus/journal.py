"""Append-only record of the finished pieces of a stage: what a restart need not do again."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from harness.errors import CheckError


class Journal:
    """JSON documents, one a line; `append` returns when they are on disk.

    A line that a kill cut short is dropped when the journal is opened again. Only one process may
    hold a journal: the stage's folder lock sees to that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._descriptor, _whole_lines(self.path.read_bytes()))
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def append(self, documents: Iterable[dict[str, Any]]) -> None:
        """Adds documents and waits for the disk, once for all of them."""
        if self._descriptor is None:
            raise ValueError("the journal is not open")
        raw = "".join(json.dumps(document) + "\n" for document in documents).encode()
        while raw:
            raw = raw[os.write(self._descriptor, raw) :]
        os.fsync(self._descriptor)

    def read(self) -> list[dict[str, Any]]:
        """All whole documents so far, in the order in which they were appended.

        Raises:
            CheckError: A line in the middle is no JSON: the file was changed by someone else.
        """
        raw = self.path.read_bytes() if self.path.exists() else b""
        documents = []
        for number, line in enumerate(raw[: _whole_lines(raw)].splitlines(), start=1):
            try:
                documents.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise CheckError(
                    f"{self.path}:{number}: expected a JSON line of this journal, found "
                    f"{line[:60]!r}",
                    "the file was changed from outside; start the stage again with --overwrite",
                ) from error
        return documents


def _whole_lines(raw: bytes) -> int:
    """Length of the part that ends with a line's end."""
    return raw.rfind(b"\n") + 1
