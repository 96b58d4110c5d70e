import numpy as np
import pytest

from harness.corpus.statistics import (
    RowFacts,
    Statistics,
    acceptance_ceiling,
    compute_statistics,
    coverage_curve,
    pack,
    summarise,
)
from harness.corpus.statpage import render_statistics


def ceiling(text: str, k: int) -> float:
    """Answers as in `11011 111`: 1 is a token that the vocabulary has."""
    is_known = np.array([c == "1" for c in text if c != " "])
    ends = np.cumsum([len(part) for part in text.split()])
    return acceptance_ceiling(is_known, ends, k)


@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [
        ("1111", 3, 4.0),
        ("111111", 3, 4.0),
        ("0000", 3, 1.0),
        # Accepted 2, then the missed one is the verifier's own: 3 tokens in one draft, twice.
        ("110110", 3, 3.0),
        # 3 accepted and a known bonus, then 1 accepted and the missed one: 6 tokens in 2 drafts.
        ("111110", 3, 3.0),
        # The missed token stands where the bonus does: nothing is lost.
        ("1110", 3, 4.0),
        ("10 10", 1, 2.0),
    ],
)
def test_the_ceiling_counts_drafts_by_hand(text: str, k: int, expected: float) -> None:
    assert ceiling(text, k) == pytest.approx(expected)


def walk(text: str, k: int) -> float:
    """The same by walking, for answers that end with a missed token."""
    at, drafts = 0, 0
    while at < len(text):
        accepted = 0
        while accepted < k and text[at + accepted] == "1":
            accepted += 1
        at, drafts = at + accepted + 1, drafts + 1
    return len(text) / drafts


def test_the_ceiling_is_that_of_a_walk() -> None:
    random = np.random.default_rng(0)
    for k in (1, 3, 5):
        text = "".join("1" if one else "0" for one in random.random(400) < 0.85) + "0" * (k + 1)
        assert ceiling(text, k) == pytest.approx(walk(text, k))


def test_more_tokens_cover_more_and_all_cover_all() -> None:
    answers = [np.array([5, 5, 5, 7, 5, 9]), np.array([7, 5])]
    frequencies = np.bincount(np.concatenate(answers), minlength=2000)
    (row,) = coverage_curve(answers, frequencies)
    assert (row.draft_vocab_size, row.coverage, row.ceiling) == (3, 1.0, 4.0)
    many = [np.arange(1500)]
    rows = coverage_curve(many, np.bincount(many[0], minlength=3000))
    assert [row.draft_vocab_size for row in rows] == [500, 1000, 1500]
    assert [row.coverage for row in rows] == [
        pytest.approx(size / 1500) for size in (500, 1000, 1500)
    ]


def test_rows_are_packed_one_after_the_other() -> None:
    packing = pack(np.array([60, 50, 40, 300]), 100)
    # 60; 50 + 40; 300 cut to 100.
    assert (packing.num_batches, packing.fill) == (3, pytest.approx(250 / 300))


def test_lengths_have_quantiles_and_every_value_is_in_a_bin() -> None:
    lengths = summarise(np.array([10, 20, 20, 30, 100]))
    assert (lengths.least, lengths.median, lengths.most, lengths.mean) == (10, 20, 100, 36.0)
    assert sum(lengths.counts) == 5
    assert summarise(np.array([7])).counts[0] == 1


def build() -> Statistics:
    rows = RowFacts(
        categories=["qa", "<b>", "qa"],
        token_ids=[np.array(ids, dtype=np.int32) for ids in ([1, 2, 3, 4], [1, 5], [1, 2, 3])],
        loss_masks=[np.array(m, dtype=np.int8) for m in ([0, 1, 0, 1], [0, 1], [0, 1, 1])],
    )
    return compute_statistics(
        rows, num_conversations=3, dropped={"no_answer": 2}, vocab_size=10, batch_tokens=8
    )


def test_only_answers_count_for_the_vocabulary() -> None:
    statistics = build()
    assert (statistics.num_tokens, statistics.num_loss_tokens) == (9, 5)
    assert statistics.num_distinct_tokens == 4
    assert [(c.category, c.num_rows, c.num_loss_tokens) for c in statistics.categories] == [
        ("qa", 2, 4),
        ("<b>", 1, 1),
    ]
    assert Statistics.model_validate_json(statistics.model_dump_json()) == statistics


def test_the_page_says_it_all_and_escapes_what_strangers_wrote() -> None:
    page = render_statistics(build())
    for text in ("9 tokens, 5 of them answers", "2 no_answer", "&lt;b&gt;", "<svg", "ceiling at K"):
        assert text in page
    assert "<b>" not in page
    assert "<script" not in page
    assert "http" not in page
