"""Rules on weights of a child against its parent's: what was loaded, and what was drawn anew."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from harness.drafter.check_tables import target_ids
from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding
from harness.drafter.tensors import TensorHeader
from harness.drafter.values import as_float32, iter_chunks

_UNRELATED_COSINE = 0.1
_BY_VOCABULARY = ("lm_head.weight",)


def check_weights_against_parent(drafter: Drafter, parent: Drafter) -> list[Finding]:
    """Matrices that have nothing in common with the parent's: drawn anew, not finetuned (S25)."""
    findings = []
    for name in sorted(set(drafter.stored_names) & set(parent.stored_names)):
        mine, theirs = drafter.find(name), parent.find(name)
        if mine is None or theirs is None or len(mine.shape) < 2:  # noqa: PLR2004 - matrices
            continue
        if mine.shape != theirs.shape or _is_regathered(name, drafter, parent):
            continue
        cosine = _cosine(drafter, mine, parent, theirs)
        if cosine < _UNRELATED_COSINE:
            findings.append(_drawn_anew(name, cosine))
    return findings


def _is_regathered(name: str, drafter: Drafter, parent: Drafter) -> bool:
    return name in _BY_VOCABULARY and not np.array_equal(target_ids(drafter), target_ids(parent))


def _cosine(drafter: Drafter, mine: TensorHeader, parent: Drafter, theirs: TensorHeader) -> float:
    dot = left_square = right_square = 0.0
    pieces = zip(_pieces(drafter, mine), _pieces(parent, theirs), strict=True)
    for left, right in pieces:
        dot += float(np.dot(left, right))
        left_square += float(np.dot(left, left))
        right_square += float(np.dot(right, right))
    norm = (left_square * right_square) ** 0.5
    return dot / norm if norm else 0.0


def _pieces(drafter: Drafter, header: TensorHeader) -> Iterator[npt.NDArray[np.float32]]:
    for chunk in iter_chunks(drafter.path, header):
        yield as_float32(chunk, header.dtype)


def _drawn_anew(name: str, cosine: float) -> Finding:
    return Finding(
        rule="S25", severity="error", subject=name, expected="values close to the parent's",
        found=f"cosine {cosine:.2f}",
        consequence="The tensor was not loaded from the parent: training started from random.",
        fix="finetune with `harness train --finetune-from`, which loads every tensor or refuses",
    )  # fmt: skip
