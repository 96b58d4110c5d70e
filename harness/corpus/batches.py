"""Rows packed into forward passes by a budget of tokens, which is lowered where memory ends.

The batches follow from the row lengths and the budgets alone, so that work that was stopped, or
done again for a few files, makes the same passes and with them the same bytes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.config.load import Frozen


class Batch(NamedTuple):
    """Rows that go through the verifier together."""

    rows: tuple[int, ...]
    num_tokens: int
    """Without padding."""


class Budget(Frozen):
    """Tokens of a forward pass, padding included, from one batch of the first plan on."""

    first_batch: int
    tokens: int


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
    """Rows of like length together, longest first, so that little is padded and memory peaks early.

    The plan depends on the lengths and the budget alone.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches: list[Batch] = []
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // max(1, lengths[order[start]]))
        batches.append(_batch(order[start : start + size], lengths))
        start += size
    return batches


def split_batch(batch: Batch, lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
    """A batch of a plan in pieces that keep a smaller budget; a long row is a piece of its own."""
    size = max(1, batch_tokens // max(1, lengths[batch.rows[0]]))
    starts = range(0, len(batch.rows), size)
    return [_batch(batch.rows[start : start + size], lengths) for start in starts]


class Schedule:
    """The passes of an extraction under the budgets that it ended up with.

    Args:
        lengths: Tokens of each row.
        budgets: The first of batch 0, then any lower ones in the order in which they came. One that
            its owner adds meanwhile counts at once.
    """

    def __init__(self, lengths: Sequence[int], budgets: Sequence[Budget]) -> None:
        self._lengths = lengths
        self._budgets = budgets
        self._plan = plan_batches(lengths, budgets[0].tokens)

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        """Each pass with the number of its batch."""
        for number, batch in enumerate(self._plan):
            pending = [batch]
            while pending:
                piece, *rest = pending
                if self._longest(piece) * len(piece.rows) > self.tokens(number):
                    pieces = split_batch(piece, self._lengths, self.tokens(number))
                    if len(pieces) > 1:
                        pending = [*pieces, *rest]
                        continue
                done = self.tokens(number)
                yield number, piece
                is_lower = self.tokens(number) < done
                pending = pending if is_lower else rest

    def tokens(self, number: int) -> int:
        """The budget that a batch of the plan is run with."""
        return min(b.tokens for b in self._budgets if b.first_batch <= number)

    def halve(self, number: int, batch: Batch) -> Budget | None:
        """The budget, from a batch on, of half of what it took; None for a single row."""
        if len(batch.rows) == 1:
            return None
        taken = self._longest(batch) * len(batch.rows)
        return Budget(first_batch=number, tokens=max(1, taken // 2))

    def _longest(self, batch: Batch) -> int:
        return self._lengths[batch.rows[0]]


def _batch(rows: Sequence[int], lengths: Sequence[int]) -> Batch:
    return Batch(tuple(rows), sum(lengths[row] for row in rows))
