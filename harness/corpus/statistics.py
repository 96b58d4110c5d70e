"""What a prepared corpus is made of, and what a draft vocabulary of each size would cost.

A drafter that knows R tokens is wrong at every other one. Over answers as they are, the best that
it can do is accept up to the next token that it lacks: that gives each R a ceiling.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.config.load import Frozen

Ids = npt.NDArray[np.int64]
VOCAB_SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000)
CEILING_K = 3
_QUANTILES = {"least": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "most": 1.0}
_NUM_BINS = 12


class Lengths(Frozen):
    """How long rows, or the answers in them, are, in tokens."""

    least: int
    p5: int
    median: int
    p95: int
    most: int
    mean: float
    edges: tuple[int, ...]
    """Of the bins, one more than `counts`."""
    counts: tuple[int, ...]


class CategoryRow(Frozen):
    """One kind of question."""

    category: str
    num_rows: int
    num_tokens: int
    num_loss_tokens: int


class CoverageRow(Frozen):
    """What a draft vocabulary of the most frequent tokens reaches."""

    draft_vocab_size: int
    coverage: float
    """Share of the answer tokens that it holds."""
    ceiling: float
    """Acceptance length at K = `CEILING_K` of a drafter that is right wherever it can be."""


class Packing(Frozen):
    """Rows in the trainer's batches of `batch_tokens`."""

    batch_tokens: int
    num_batches: int
    fill: float
    """Share of the batches that is not padding."""


class Statistics(Frozen):
    """A prepared corpus in figures."""

    num_conversations: int
    num_rows: int
    num_tokens: int
    num_loss_tokens: int
    num_distinct_tokens: int
    """Different tokens in the answers."""
    dropped: dict[str, int]
    """Conversations and rows that are not in it, by reason."""
    rows: Lengths
    answers: Lengths
    """Loss tokens of each row."""
    packing: Packing
    categories: tuple[CategoryRow, ...]
    coverage: tuple[CoverageRow, ...]


class RowFacts(NamedTuple):
    """What the figures are made of, in the order of the rows."""

    categories: Sequence[str]
    token_ids: Sequence[npt.NDArray[np.int32]]
    loss_masks: Sequence[npt.NDArray[np.int8]]


def compute_statistics(
    rows: RowFacts,
    *,
    num_conversations: int,
    dropped: dict[str, int],
    vocab_size: int,
    batch_tokens: int,
) -> Statistics:
    """The figures of a corpus with at least one answer token."""
    lengths = np.array([len(ids) for ids in rows.token_ids])
    loss_lengths = np.array([int(mask.sum()) for mask in rows.loss_masks])
    answers = _answer_spans(rows)
    frequencies = np.bincount(np.concatenate(answers), minlength=vocab_size)
    return Statistics(
        num_conversations=num_conversations,
        num_rows=len(lengths),
        num_tokens=int(lengths.sum()),
        num_loss_tokens=int(loss_lengths.sum()),
        num_distinct_tokens=int((frequencies > 0).sum()),
        dropped=dropped,
        rows=summarise(lengths),
        answers=summarise(loss_lengths),
        packing=pack(lengths, batch_tokens),
        categories=_by_category(rows.categories, lengths, loss_lengths),
        coverage=coverage_curve(answers, frequencies),
    )


def summarise(values: npt.NDArray[np.int64]) -> Lengths:
    """Quantiles, mean and a histogram of whole numbers."""
    found = {
        name: int(np.quantile(values, at, method="inverted_cdf")) for name, at in _QUANTILES.items()
    }
    width = max(1, -(-(found["most"] + 1 - found["least"]) // _NUM_BINS))
    edges = [found["least"] + width * i for i in range(_NUM_BINS + 1)]
    counts, _ = np.histogram(values, bins=edges)
    return Lengths(
        **found,
        mean=float(values.mean()),
        edges=tuple(edges),
        counts=tuple(int(count) for count in counts),
    )


def pack(lengths: npt.NDArray[np.int64], batch_tokens: int) -> Packing:
    """Rows one after the other into batches, a new one where a row does not fit.

    Source: speculators 0.9.0, train/distributed_batch_sampler.py on one GPU, which does the same in
    an order of its own; longer rows are cut to the batch there, as here.
    """
    num_batches, filled, total = 0, batch_tokens, 0
    for length in np.minimum(lengths, batch_tokens).tolist():
        if filled + length > batch_tokens:
            num_batches, filled = num_batches + 1, 0
        filled += length
        total += length
    return Packing(
        batch_tokens=batch_tokens,
        num_batches=num_batches,
        fill=total / (num_batches * batch_tokens),
    )


def coverage_curve(answers: Sequence[Ids], frequencies: Ids) -> tuple[CoverageRow, ...]:
    """Coverage and ceiling of the R most frequent tokens, for R of `VOCAB_SIZES` and the last.

    Args:
        answers: Token ids of each answer.
        frequencies: Count of each token id in them.
    """
    order = np.lexsort((np.arange(len(frequencies)), -frequencies))
    rank = np.empty(len(frequencies), dtype=np.int64)
    rank[order] = np.arange(len(frequencies))
    num_used = int((frequencies > 0).sum())
    sizes = [size for size in VOCAB_SIZES if size < len(frequencies)]
    sizes = sorted({*(size for size in sizes if size < num_used), num_used})
    ranks = np.concatenate([rank[answer] for answer in answers])
    ends = np.cumsum([len(answer) for answer in answers])
    return tuple(
        CoverageRow(
            draft_vocab_size=size,
            coverage=float((ranks < size).mean()),
            ceiling=acceptance_ceiling(ranks < size, ends, CEILING_K),
        )
        for size in sizes
    )


def acceptance_ceiling(is_known: npt.NDArray[np.bool_], ends: Ids, k: int) -> float:
    """Tokens per draft if every known token is proposed rightly and every other one is missed.

    A run of r known tokens and the unknown one after it take floor(r / (k + 1)) full drafts and one
    more, which ends with the unknown token as the verifier's own. At the end of an answer a draft
    that is not used up counts by its part.

    Args:
        is_known: For each answer token, answer after answer.
        ends: Index behind the last token of each answer.
        k: Tokens proposed per draft.
    """
    stops = np.union1d(np.flatnonzero(~is_known) + 1, ends)
    sizes = np.diff(stops, prepend=0)
    is_missed = ~is_known[stops - 1]
    runs = sizes - is_missed
    drafts = np.where(is_missed, runs // (k + 1) + 1, runs / (k + 1))
    return float(sizes.sum() / drafts.sum())


def _answer_spans(rows: RowFacts) -> list[Ids]:
    """Each stretch of tokens with loss by itself."""
    spans: list[Ids] = []
    for ids, mask in zip(rows.token_ids, rows.loss_masks, strict=True):
        cuts = np.flatnonzero(np.diff(mask, prepend=0, append=0))
        spans += [
            ids[start:end].astype(np.int64)
            for start, end in zip(cuts[::2], cuts[1::2], strict=True)
        ]
    return spans


def _by_category(
    categories: Sequence[str], lengths: npt.NDArray[np.int64], loss_lengths: npt.NDArray[np.int64]
) -> tuple[CategoryRow, ...]:
    rows: Counter[str] = Counter(categories)
    tokens: Counter[str] = Counter()
    loss: Counter[str] = Counter()
    for category, length, num_loss in zip(categories, lengths, loss_lengths, strict=True):
        tokens[category] += int(length)
        loss[category] += int(num_loss)
    return tuple(
        CategoryRow(
            category=name,
            num_rows=rows[name],
            num_tokens=tokens[name],
            num_loss_tokens=loss[name],
        )
        for name in sorted(rows, key=lambda name: (-loss[name], name))
    )
