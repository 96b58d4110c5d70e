"""Absolute ids in d2t are told from offsets, and no legal table is ever taken for them (S6)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.drafters import (
    DRAFT_VOCAB,
    VOCAB,
    build_drafter,
    build_verifier,
    decoder,
    edit_config,
    edit_tensors,
)

from harness.drafter.check_tables import check_tables
from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    return build_drafter(root / "d", build_verifier(root / "v"))


def findings_of(
    path: Path, d2t: np.ndarray, vocab_size: int, t2d: np.ndarray | None
) -> list[Finding]:
    """What is said of tables put into a drafter of that vocabulary."""

    def change(tensors: dict[str, Any]) -> None:
        tensors |= {"d2t": d2t.astype(np.int64), "t2d": t2d}
        if t2d is None:
            del tensors["t2d"]

    edit_tensors(path, change)
    edit_config(path, lambda config: decoder(config).update(vocab_size=vocab_size))
    edit_config(path, lambda config: config.update(draft_vocab_size=len(d2t)))
    return check_tables(Drafter.load(path))


def mask_of(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    mask = np.zeros(vocab_size, dtype=bool)
    mask[ids] = True
    return mask


LEGAL = {
    "every 40th id": (np.arange(0, 40 * DRAFT_VOCAB, 40), 80 * VOCAB),
    "no two neighbours by chance": (np.arange(40) * 90 + 7, 4000),
    "the last ids": (np.arange(VOCAB - 100, VOCAB), VOCAB),
    "one id": (np.array([300]), VOCAB),
    "one neighbour": (np.array([3, 9, 10, 40]), VOCAB),
}


@pytest.mark.parametrize("has_t2d", [True, False])
@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_table_is_no_finding(verified: Path, name: str, *, has_t2d: bool) -> None:
    ids, vocab_size = LEGAL[name]
    mask = mask_of(ids, vocab_size) if has_t2d else None
    assert findings_of(verified, ids - np.arange(len(ids)), vocab_size, mask) == []


def test_even_ids_are_legal_where_the_mask_says_so(verified: Path) -> None:
    ids = np.arange(0, 2 * DRAFT_VOCAB, 2)
    assert findings_of(verified, ids - np.arange(DRAFT_VOCAB), VOCAB, mask_of(ids, VOCAB)) == []


@pytest.mark.parametrize("seed", range(8))
def test_a_random_table_is_no_finding(verified: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab_size = int(rng.integers(2, 3000))
    size = int(rng.integers(1, vocab_size))
    ids = np.sort(rng.choice(vocab_size, size, replace=False))
    if (ids == np.arange(size)).all():
        ids = ids + 1
    for mask in (mask_of(ids, vocab_size), None):
        assert findings_of(verified, ids - np.arange(size), vocab_size, mask) == []


@pytest.mark.parametrize("has_t2d", [True, False])
@pytest.mark.parametrize("size", [2, 20, 128, 500])
def test_absolute_ids_are_called_so(verified: Path, size: int, *, has_t2d: bool) -> None:
    ids = np.sort(np.random.default_rng(size).choice(VOCAB, size, replace=False))
    mask = mask_of(ids, VOCAB) if has_t2d else None
    found = findings_of(verified, ids, VOCAB, mask)
    if not has_t2d and size < 100 and ids[-1] + size <= VOCAB:
        assert found == [], "nothing tells them from offsets; S7 or replay does"
        return
    assert [(f.rule, f.subject) for f in found] == [("S6", "d2t")]
    assert "absolute ids" in found[0].found


def test_the_first_ids_as_a_table_of_absolute_ids(verified: Path) -> None:
    found = findings_of(verified, np.arange(DRAFT_VOCAB), VOCAB, None)
    assert "absolute ids" in found[0].found


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, -1, VOCAB])
@pytest.mark.parametrize("row", [0, 1, -1])
def test_a_wild_offset_is_an_error_and_no_crash(verified: Path, value: int, row: int) -> None:
    d2t = np.zeros(DRAFT_VOCAB, dtype=np.int64) + 5
    d2t[row] = value
    assert [f.rule for f in findings_of(verified, d2t, VOCAB, None)] == ["S6"]
