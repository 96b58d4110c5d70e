"""What is replayed: token sequences with the verifier's hidden states, in batches of bounded size.

A sequence is a whole conversation as the verifier saw it. Entry i of it joins the hidden states of
token i with the embedding of token i + 1; it proposes tokens i + 2, i + 3, ...
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from eval.errors import SpecError

_Item = TypeVar("_Item")


class Span(NamedTuple):
    """One answer: tokens `begin` to `end` - 1 of its sequence are the verifier's own."""

    begin: int
    end: int

    def whole_entries(self, k: int) -> slice:
        """The entries whose K next tokens all lie in this answer."""
        return slice(max(self.begin - 1, 0), max(self.end - 1 - k, 0))


class Row(NamedTuple):
    """One sequence, its hidden states read when they are needed."""

    id: str
    category: str
    token_ids: tuple[int, ...]
    """Prompt and answers, and `num_beyond` tokens more."""
    spans: tuple[Span, ...]
    """The answers, in order."""
    load_states: Callable[[], Tensor]
    """Aux states, then the final norm's input: [tokens without those beyond, A + 1, D]."""
    num_beyond: int = 0
    """Tokens that the verifier would have gone on with after the last answer's end: what vLLM
    accepts past the cut is found in them. 0: not known."""

    @property
    def num_entries(self) -> int:
        """Tokens whose hidden states are there and that have a successor."""
        return len(self.token_ids) - self.num_beyond - 1

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of all its answers."""
        return sum(span.end - span.begin for span in self.spans)


class Batch(NamedTuple):
    """Rows padded to one length, T entries; what lies behind a row's end is never read."""

    rows: tuple[Row, ...]
    next_ids_BU: Tensor
    """Token i + 1 for i = 0.. T - 1 + K: known tokens, then -1."""
    states_BTAD: Tensor
    """Aux states and the final norm's input, of T + 1 tokens."""
    is_start_BT: Tensor
    """Entries from which an answer is drafted: the newest token is the verifier's own."""


def spans_of(loss_mask: Sequence[int]) -> tuple[Span, ...]:
    """The runs of ones in a loss mask."""
    padded = np.concatenate(([0], np.asarray(loss_mask, dtype=np.int8), [0]))
    edges = np.flatnonzero(np.diff(padded))
    return tuple(Span(int(a), int(b)) for a, b in edges.reshape(-1, 2))


def spread(rows: Sequence[Row], most_tokens: int) -> list[Row]:
    """Every n-th row, so that about `most_tokens` answer tokens are left."""
    total = sum(row.num_answer_tokens for row in rows)
    return list(rows[:: max(1, -(-total // most_tokens))])


def build_batches(rows: Sequence[Row], budget_tokens: int, num_ahead: int) -> Iterator[Batch]:
    """Rows of like length together, padding included at most `budget_tokens` entries each.

    A longer row is a batch of its own.

    Args:
        rows: What to replay.
        budget_tokens: Bounds the memory.
        num_ahead: Tokens that are looked ahead, K.

    Raises:
        SpecError: A row's hidden states are not those of its tokens, or not finite.
    """
    drafting = [row for row in rows if row.num_entries > 0]
    for taken in split_by_width(drafting, lambda row: row.num_entries, budget_tokens):
        yield _pad(taken, num_ahead)


def split_by_width(
    items: Iterable[_Item], width: Callable[[_Item], int], budget: int
) -> Iterator[list[_Item]]:
    """Items of like width together, the widest first; padded to it they stay within the budget.

    A wider item than the budget comes alone.
    """
    order = sorted(items, key=width, reverse=True)
    while order:
        size = max(1, budget // width(order[0]))
        taken, order = order[:size], order[size:]
        yield taken


def _pad(rows: Sequence[Row], num_ahead: int) -> Batch:
    longest = rows[0].num_entries
    next_ids = torch.full((len(rows), longest + num_ahead), -1)
    is_start = torch.zeros(len(rows), longest, dtype=torch.bool)
    states = []
    for index, row in enumerate(rows):
        known = torch.tensor(row.token_ids[1 : 1 + longest + num_ahead])
        next_ids[index, : len(known)] = known
        for begin, end in row.spans:
            is_start[index, max(begin - 1, 0) : end - 1] = True
        states.append(_load(row, longest))
    return Batch(tuple(rows), next_ids, torch.stack(states), is_start)


def _load(row: Row, longest: int) -> Tensor:
    states_TAD = row.load_states()
    if len(states_TAD) != row.num_entries + 1:
        raise SpecError(
            f"{row.id}: expected hidden states of {row.num_entries + 1} tokens, found "
            f"{len(states_TAD)}",
            "the file belongs to another corpus, or was cut; extract it again",
        )
    if not torch.isfinite(states_TAD).all():
        token = int((~torch.isfinite(states_TAD)).any(2).any(1).nonzero()[0])
        raise SpecError(
            f"{row.id}: expected finite hidden states, found NaN or infinity at token {token}",
            "the file was damaged, or the verifier overflowed in its dtype; make it again",
        )
    return torch.nn.functional.pad(states_TAD, (0, 0, 0, 0, 0, longest - row.num_entries))
