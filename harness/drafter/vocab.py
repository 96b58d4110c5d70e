"""The draft vocabulary: which tokens, their tables, and an output head that fits them.

R draft vocabulary, V verifier vocabulary, H hidden size. `d2t` holds offsets (verifier id =
draft id + d2t[draft id]), strictly increasing; `t2d` is the mask of the chosen ids.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.drafter.values import Matrix, from_float32, read_tensor
from harness.errors import ConfigError

Ids = npt.NDArray[np.int64]


class Tables(NamedTuple):
    """Both maps of a draft vocabulary: d2t int64 [R], t2d bool [V]."""

    d2t: Ids
    t2d: npt.NDArray[np.bool_]


class RebuiltHead(NamedTuple):
    """An output head re-gathered for another draft vocabulary, in the stored dtype, [R, H]."""

    rows: npt.NDArray[Any]
    num_kept: int
    num_new: int
    ratio: float
    """Scale of the verifier's rows that stand in for rows that the parent lacks."""


def select_tokens(frequencies: Mapping[int, int], draft_vocab_size: int, vocab_size: int) -> Ids:
    """The most frequent ids, ascending, shape [R]; ties and gaps go to the lowest ids.

    Source: speculators 0.9.0, train/vocab_mapping.py; the same input gives the same ids.
    """
    outside = [token for token in frequencies if not 0 <= token < vocab_size]
    if outside:
        raise ConfigError(
            f"token frequencies: expected ids below {vocab_size}, found {max(outside)}",
            "count them again with this verifier's tokenizer (harness data prepare)",
        )
    ranked = sorted(frequencies, key=lambda token: (-frequencies[token], token))[:draft_vocab_size]
    chosen = np.zeros(vocab_size, dtype=bool)
    chosen[ranked] = True
    missing = draft_vocab_size - len(ranked)
    chosen[np.flatnonzero(~chosen)[:missing]] = True
    ids: Ids = np.flatnonzero(chosen).astype(np.int64)
    return ids


def build_tables(target_ids: Ids, vocab_size: int) -> Tables:
    """Tables for ascending verifier ids."""
    t2d = np.zeros(vocab_size, dtype=bool)
    t2d[target_ids] = True
    return Tables(target_ids - np.arange(len(target_ids), dtype=np.int64), t2d)


def load_frequencies(path: Path) -> dict[int, int]:
    """Reads a `token_freq.pt` (id -> count) without running what a pickle may hold."""
    import torch  # noqa: PLC0415 - torch costs seconds that no other use of this module needs

    if not path.is_file():
        raise ConfigError(f"expected token frequencies, found none: {path}", "harness data prepare")
    try:
        document = torch.load(path, weights_only=True)
    except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigError(f"{path}: not token frequencies: {error}", "count them again") from error
    if not isinstance(document, dict) or not all(
        type(k) is int and type(v) is int for k, v in document.items()
    ):
        raise ConfigError(f"{path}: expected whole numbers by token id", "count them again")
    return document


def rebuild_head(parent: Matrix, parent_ids: Ids, verifier: Matrix, new_ids: Ids) -> RebuiltHead:
    """Gathers lm_head rows by verifier id for a new draft vocabulary.

    A row that the parent has is taken bit by bit. One that it lacks is the verifier's own row
    times the median ratio of the parent's row norms to the verifier's.

    Args:
        parent: The parent's lm_head, [R, H].
        parent_ids: The verifier id of each of its rows.
        verifier: The verifier's output head, [V, H].
        new_ids: The verifier ids wanted, ascending.
    """
    if parent.header.shape[1] != verifier.header.shape[1]:
        raise ConfigError(
            f"lm_head: the verifier's rows are {verifier.header.shape[1]} wide, the parent's "
            f"{parent.header.shape[1]}: no row can stand in for a missing one",
            "keep the parent's vocabulary (vocab_policy: keep)",
        )
    stored = read_tensor(parent.folder, parent.header)
    row_of = np.full(verifier.header.shape[0], -1, dtype=np.int64)
    row_of[parent_ids] = np.arange(len(parent_ids))
    rows = row_of[new_ids]
    is_known = rows >= 0
    head = np.empty((len(new_ids), stored.shape[1]), dtype=stored.dtype)
    head[is_known] = stored[rows[is_known]]
    ratio = _norm_ratio(parent, parent_ids, verifier)
    lacking = np.flatnonzero(~is_known)
    for start in range(0, len(lacking), _BLOCK_ROWS):
        at = lacking[start : start + _BLOCK_ROWS]
        head[at] = from_float32(verifier.read(new_ids[at]) * np.float32(ratio), parent.header.dtype)
    return RebuiltHead(head, int(is_known.sum()), len(lacking), ratio)


_BLOCK_ROWS = 1024


def _norm_ratio(parent: Matrix, parent_ids: Ids, verifier: Matrix) -> float:
    ratios = []
    for rows in parent.blocks():
        mine = np.linalg.norm(parent.read(rows), axis=1)
        theirs = np.linalg.norm(verifier.read(parent_ids[rows]), axis=1)
        ratios.append(mine[theirs > 0] / theirs[theirs > 0])
    return float(np.median(np.concatenate(ratios)))
