"""Draft vocabularies: the same choice as speculators', tables that fit, heads re-gathered."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from harness.drafter.tensors import read_folder_headers
from harness.drafter.values import Matrix
from harness.drafter.vocab import build_tables, rebuild_head, select_tokens
from harness.errors import ConfigError


def test_the_most_frequent_ids_are_chosen_ties_and_gaps_by_the_lowest() -> None:
    frequencies = {9: 5, 3: 5, 7: 1, 4: 1}
    assert select_tokens(frequencies, 2, 10).tolist() == [3, 9]
    assert select_tokens(frequencies, 3, 10).tolist() == [3, 4, 9]
    assert select_tokens(frequencies, 6, 10).tolist() == [0, 1, 3, 4, 7, 9]
    assert select_tokens({}, 10, 10).tolist() == list(range(10))


def test_frequencies_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(ConfigError, match="below 10, found 12"):
        select_tokens({12: 1}, 2, 10)


def test_tables_are_offsets_and_their_mask() -> None:
    ids = np.array([1, 4, 5, 9])
    tables = build_tables(ids, 10)
    assert tables.d2t.dtype == np.int64
    assert (np.arange(4) + tables.d2t).tolist() == ids.tolist()
    assert np.flatnonzero(tables.t2d).tolist() == ids.tolist()


def test_rows_follow_their_tokens_and_new_ones_have_the_heads_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    verifier = rng.normal(size=(10, 4)).astype(np.float32)
    old_ids, new_ids = np.array([1, 4, 5]), np.array([2, 4, 5, 8])
    parent = 3 * verifier[old_ids]
    save_file({"parent": parent, "verifier": verifier}, tmp_path / "x.safetensors")
    headers = read_folder_headers(tmp_path)
    head = rebuild_head(
        Matrix(tmp_path, headers["parent"]), old_ids, Matrix(tmp_path, headers["verifier"]), new_ids
    )
    assert (head.num_kept, head.num_new) == (2, 2)
    assert head.ratio == pytest.approx(3)
    np.testing.assert_array_equal(head.rows[1:3], parent[1:3])
    np.testing.assert_allclose(head.rows[[0, 3]], 3 * verifier[[2, 8]], rtol=1e-6)
