"""Rule S7: lm_head rows stand where d2t says they do, judged by the verifier's own head.

R draft vocabulary, V verifier vocabulary, H hidden size, S rows searched for. Rows are compared
after the verifier's mean row is taken off, since the rows of a head share a direction.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.drafter.check_tables import target_ids
from harness.drafter.check_values import row_cosines
from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding
from harness.drafter.values import FLOATS, Matrix
from harness.drafter.verifier import Verifier

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_MEAN_ROWS = 2048
_SAMPLED_ROWS = 16
_CLEARLY, _MATCH, _MAX_MATCH, _NOISE_FACTOR = 0.2, 0.5, 0.9, 1.6


class _Matches(NamedTuple):
    """For each of S rows, its best verifier row: cosine and id."""

    cosines: Floats
    ids: Ids


def check_head_rows(drafter: Drafter, verifier: Verifier) -> list[Finding]:
    """An error when lm_head rows match other verifier ids clearly better than those d2t names.

    Not applicable where widths differ, the verifier's folder has no weights or a head is quantised.
    """
    header, key = drafter.find("lm_head.weight"), verifier.lm_head_key
    if header is None or key is None:
        return []
    mine, theirs = Matrix(drafter.path, header), Matrix(verifier.path, verifier.header(key))
    is_like = theirs.header.shape == (drafter.vocab_size, header.shape[1])
    if not is_like or not {header.dtype, theirs.header.dtype} <= FLOATS:
        return []
    targets = target_ids(drafter)
    mean = _mean_row(theirs)
    named = _named_cosines(mine, theirs, targets, mean)
    threshold = _match_threshold(theirs)
    rows = _rows_to_search(named)
    if not len(rows):
        return []
    found = _best_matches(mine.read(rows) - mean, theirs, mean)
    is_clear = found.cosines >= np.maximum(threshold, named[rows] + _CLEARLY)
    # A short row less the mean points away from it, and so does any verifier row near zero.
    is_like_whole = row_cosines(mine.read(rows), theirs.read(found.ids)) >= threshold
    is_elsewhere = is_clear & is_like_whole & (found.ids != targets[rows])
    if is_elsewhere.any():
        at = int(np.argmax(np.where(is_elsewhere, found.cosines, -1)))
        count = f"{int(is_elsewhere.sum())} of {len(rows)} rows searched"
        return [_misplaced(int(rows[at]), int(targets[rows[at]]), int(found.ids[at]), count)]
    if float(np.median(named)) < threshold:
        return [_apart(float(np.median(named)))]
    return []


def _named_cosines(mine: Matrix, theirs: Matrix, targets: Ids, mean: Floats) -> Floats:
    """Cosine of every draft row with the verifier row that d2t names, shape [R]."""
    return np.concatenate(
        [
            row_cosines(mine.read(rows) - mean, theirs.read(targets[rows]) - mean)
            for rows in mine.blocks()
        ]
    )


def _rows_to_search(named: Floats) -> Ids:
    """Draft rows to look for elsewhere: the worst-placed and an even sample, each once.

    A row that another could not beat clearly is left out: none is left of a well-placed head.
    """
    doubtful = np.flatnonzero(named <= 1 - _CLEARLY)
    worst = doubtful[np.argsort(named[doubtful])[:_SAMPLED_ROWS]]
    even = doubtful[:: max(1, len(doubtful) // _SAMPLED_ROWS)]
    return np.unique(np.concatenate([worst, even]))


def _best_matches(rows_SH: Floats, theirs: Matrix, mean: Floats) -> _Matches:  # noqa: N803 - shape suffix
    """Searches the whole verifier head, of which no centred copy is made.

    With unit rows a and centre m: cos(a, r - m) = (a.r - a.m) / |r - m|, where |r - m| follows from
    r.r and r.m. So one product with [a; m] per block is all that touches the rows.
    """
    unit_SH = _unit(rows_SH)  # noqa: N806 - shape suffix
    probes = np.vstack([unit_SH, mean[None]])
    offsets, mean_square = unit_SH @ mean, float(mean @ mean)
    best = np.full(len(unit_SH), -1.0, dtype=np.float32)
    ids = np.zeros(len(unit_SH), dtype=np.int64)
    for rows in theirs.blocks():
        block = theirs.read(rows)
        products = probes @ block.T
        squares = np.einsum("rh,rh->r", block, block) - 2 * products[-1] + mean_square
        norms = np.sqrt(np.maximum(squares, 1e-12))
        cosines = (products[:-1] - offsets[:, None]) / norms
        at = cosines.argmax(axis=1)
        value = cosines[np.arange(len(at)), at]
        is_better = value > best
        best, ids = np.where(is_better, value, best), np.where(is_better, rows[at], ids)
    return _Matches(best, ids)


def _unit(rows: Floats) -> Floats:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Floats = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return unit


def _mean_row(theirs: Matrix) -> Floats:
    num_rows = theirs.header.shape[0]
    rows = np.linspace(0, num_rows - 1, min(_MEAN_ROWS, num_rows)).astype(np.int64)
    mean: Floats = theirs.read(rows).mean(axis=0)
    return mean


def _match_threshold(theirs: Matrix) -> float:
    """A cosine that V random rows of width H do not reach by chance (sqrt(2 ln V / H) is usual)."""
    num_rows, width = theirs.header.shape
    chance = float(np.sqrt(2 * np.log(num_rows) / width))
    return max(_MATCH, min(_MAX_MATCH, _NOISE_FACTOR * chance))


def _misplaced(row: int, named: int, other: int, count: str) -> Finding:
    return Finding(
        rule="S7", severity="error", subject="lm_head.weight",
        expected=f"row {row} close to the verifier's row {named}, as d2t says",
        found=f"it is the row of id {other} ({count} stand elsewhere)",
        consequence="Such draft tokens are taken for other ones, in training and in serving.",
        fix="take lm_head and d2t from one checkpoint, or finetune with vocab_policy rebuild",
    )  # fmt: skip


def _apart(cosine: float) -> Finding:
    return Finding(
        rule="lm-head-apart", severity="info", subject="lm_head.weight",
        expected="rows close to the verifier's, or rows trained apart",
        found=f"lm_head trained apart (median cosine {cosine:.2f})",
        consequence="Files cannot show whether its rows fit d2t; `harness replay` can.",
        fix="none needed",
    )  # fmt: skip
