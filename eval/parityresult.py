"""What a parity check found: replay and server, request by request. One part of a bench result."""

from eval.counters import AcceptanceCounts
from eval.spec import Frozen

Histogram = tuple[int, ...]
"""Drafts by number of accepted tokens, 0 to K."""


class UnequalRequest(Frozen):
    """One answered turn whose counts differ."""

    prompt_id: str
    turn: int
    served: Histogram
    replayed: Histogram


class ParityRow(Frozen):
    """One drafter at one K and concurrency: its requests, served and replayed."""

    drafter: str
    k: int
    concurrency: int
    num_requests: int
    num_equal: int
    """Requests whose whole histogram is the served one."""
    unequal: tuple[UnequalRequest, ...] = ()
    served: AcceptanceCounts
    replayed: AcceptanceCounts
    served_low: float | None
    """Ends of the served acceptance length's interval; None where there is none."""
    served_high: float | None
    is_exact: bool
    """Whether each request must be equal; else the replayed length must lie in the interval."""

    @property
    def is_passed(self) -> bool:
        """Whether replay and server agree as they must."""
        if self.num_equal == self.num_requests:
            return True
        if self.is_exact or self.served_low is None or self.served_high is None:
            return False
        return self.served_low <= self.replayed.acceptance_length <= self.served_high

    @property
    def verdict(self) -> str:
        """The outcome in a line."""
        lengths = (
            f"acceptance length {_length(self.replayed)} replayed, {_length(self.served)} served"
        )
        counts = f"{self.num_equal} of {self.num_requests} requests equal; {lengths}"
        if self.is_passed:
            return counts
        wanted = "all must be equal" if self.is_exact else "outside the served interval"
        return f"{counts}: {wanted}"


class ParityReport(Frozen):
    """The outputs of a measurement, replayed without a server."""

    device: str
    """Of the server; the replay runs where torch finds an accelerator."""
    dtype: str
    """Of both arithmetics."""
    rows: tuple[ParityRow, ...]
    num_answers: int
    """Distinct answers that were replayed."""
    num_answer_tokens: int
    states_s: float | None
    """Seconds in which the verifier's hidden states were computed; None: they were kept."""
    replay_s: float
    """Seconds in which the drafters were replayed, states at hand."""

    @property
    def is_passed(self) -> bool:
        """Whether every row agrees as it must."""
        return all(row.is_passed for row in self.rows)

    @property
    def num_requests(self) -> int:
        """Of all rows."""
        return sum(row.num_requests for row in self.rows)

    @property
    def num_equal(self) -> int:
        """Of all rows."""
        return sum(row.num_equal for row in self.rows)


def _length(counts: AcceptanceCounts) -> str:
    return f"{counts.acceptance_length:.4f}" if counts.num_drafts else "-"
