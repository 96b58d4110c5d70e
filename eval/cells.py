"""Cells: the smallest pieces of a measurement, kept on disk so that an interrupted one goes on.

A cell is one block of prompts asked of one arm at one concurrency. It is there whole or not at all.
"""

import hashlib
import json
from pathlib import Path

from pydantic import ValidationError

from eval.answers import Answer
from eval.counters import ServerCounters
from eval.errors import SpecError
from eval.files import write_atomic
from eval.spec import BenchSpec, Frozen

_SILENT_ALWAYS = {
    "ceiling",
    "confidence",
    "max_drift",
    "max_engines",
    "max_foreign_cpu",
    "num_resamples",
    "precision",
    "queue_path",
    "request_timeout_s",
}
"""What changes no answer: how cells are analysed, and beside what they are measured."""
ArmKey = tuple[str, int | None, int]
"""Arm name, K, concurrency."""


class CellKey(Frozen):
    """Which piece it is."""

    session: str
    arm: str
    k: int | None
    concurrency: int
    block: int


class Cell(Frozen):
    """What was measured in one piece."""

    key: CellKey
    answers: tuple[Answer, ...]
    counters: ServerCounters
    """The server's own counts over this piece; they agree with the answers'."""
    wall_s: float
    started_unix_s: float
    foreign_cpu_share: float
    """Share of the machine's CPU time that other processes took meanwhile."""


class CellStore:
    """The folder of finished cells of one measurement.

    Args:
        out_dir: Its folder; created.
        spec: The measurement; a folder that holds another one is refused.
    """

    def __init__(self, out_dir: Path, spec: BenchSpec) -> None:
        self._folder = out_dir / "cells"
        self._folder.mkdir(parents=True, exist_ok=True)
        fingerprint = fingerprint_of(spec)
        marker = out_dir / "fingerprint.txt"
        if marker.exists() and marker.read_text() != fingerprint:
            raise SpecError(
                f"{out_dir} holds another measurement (drafters, prompts or settings differ)",
                "give another folder, or delete this one",
            )
        write_atomic(marker, fingerprint)

    def get(self, key: CellKey) -> Cell | None:
        """The finished cell, or None when it is still to be measured."""
        path = self._path(key)
        try:
            return Cell.model_validate_json(path.read_bytes()) if path.exists() else None
        except ValidationError:
            return None

    def put(self, cell: Cell) -> None:
        """Keeps a finished cell."""
        write_atomic(self._path(cell.key), cell.model_dump_json())

    def _path(self, key: CellKey) -> Path:
        digest = hashlib.sha256(key.model_dump_json().encode()).hexdigest()
        return self._folder / f"{digest[:20]}.json"


_SILENT = {"data_parallel_size": 1, "enable_expert_parallel": False, "speculative_config": {}}
"""Keys of the server that came later: measurements from before them had these values."""


def fingerprint_of(spec: BenchSpec) -> str:
    """Digest of all that decides what a cell holds."""
    document = spec.model_dump(mode="json", exclude=_SILENT_ALWAYS)
    for key, silent in _SILENT.items():
        if document["server"][key] == silent:
            del document["server"][key]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_cells(out_dir: Path) -> list[Cell]:
    """All finished cells of a measurement's folder.

    Raises:
        SpecError: There are none, or one is damaged.
    """
    cells = []
    for path in sorted((out_dir / "cells").glob("*.json")):
        try:
            cells.append(Cell.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise SpecError(
                f"{path} is no cell of a measurement: {error}", "delete it and measure again"
            ) from error
    if not cells:
        raise SpecError(
            f"expected the answers of a measurement in {out_dir / 'cells'}, found none",
            "measure again",
        )
    return cells
