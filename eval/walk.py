"""From how far each entry's proposals were right to what a server counts, and what a trainer sees.

The server drafts once, jumps over what was accepted and the bonus token, and drafts again: it sees
entries behind mistakes more often than an average over all entries does. Both are told.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from eval.counters import AcceptanceCounts
from eval.spec import Frozen

if TYPE_CHECKING:  # torch, which a reader of finished walks does not need
    from eval.sequences import Row, Span

Depths = npt.NDArray[np.int64]
"""By entry of a row: steps that were right in a row; -1 where nothing was asked."""


class Walk(Frozen):
    """What a server does with one row at one K."""

    acceptance: AcceptanceCounts
    num_emitted: int
    """Tokens that the drafts emitted before the answer's end; at most drafts + accepted."""

    @property
    def emitted_length(self) -> float | None:
        """Emitted tokens per draft; None when nothing was drafted."""
        drafts = self.acceptance.num_drafts
        return self.num_emitted / drafts if drafts else None


class Draft(NamedTuple):
    """One draft of a walk: from which entry, how many accepted, how many tokens emitted."""

    entry: int
    num_accepted: int
    num_emitted: int


def walk_drafts(depths: Depths, span: "Span", k: int) -> list[Draft]:
    """The drafts of one answer, in order.

    Entry i drafts when token i + 1 is the newest and the answer is not at its end. The first token
    of an answer comes from the prefill.
    """
    drafts = []
    entry = span.begin - 1
    while entry + 2 < span.end:
        accepted = int(min(max(depths[entry], 0), k))
        emitted = min(accepted + 1, span.end - entry - 2)
        drafts.append(Draft(entry, accepted, emitted))
        entry += accepted + 1
    return drafts


def walk_row(row: "Row", depths: Depths, k: int) -> Walk:
    """The counts of all answers of a row.

    Where the tokens beyond the end are not known, nothing past it counts as accepted. After an
    answer in the middle of a row comes the next question, which the verifier did not say.
    """
    histogram = [0] * (k + 1)
    emitted = 0
    last_end = len(row.token_ids) - row.num_beyond
    for span in row.spans:
        for draft in walk_drafts(depths, span, k):
            is_own = span.end == last_end
            accepted = draft.num_accepted if is_own else min(draft.num_accepted, draft.num_emitted)
            histogram[accepted] += 1
            emitted += draft.num_emitted
    counts = AcceptanceCounts.from_histogram(histogram, k * sum(histogram))
    return Walk(acceptance=counts, num_emitted=emitted)


def count_everywhere(row: "Row", depths: Depths, k: int) -> AcceptanceCounts:
    """Every entry whose K next tokens all lie in its answer, as if each had drafted."""
    found = [np.clip(depths[span.whole_entries(k)], 0, k) for span in row.spans]
    histogram = np.bincount(np.concatenate(found) if found else [], minlength=k + 1)
    return AcceptanceCounts.from_histogram([int(n) for n in histogram], k * int(histogram.sum()))


def sum_walks(walks: Sequence[Walk]) -> Walk:
    """All counts together."""
    return Walk(
        acceptance=sum((walk.acceptance for walk in walks), AcceptanceCounts()),
        num_emitted=sum(walk.num_emitted for walk in walks),
    )
