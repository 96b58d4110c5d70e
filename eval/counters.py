"""Acceptance from counts: the one place of its formulas, and of vLLM's counters on `/metrics`.

Source of names and meanings: vLLM v1/spec_decode/metrics.py and v1/metrics/stats.py, 0.32. A count
is taken by the sampler before the answer is cut at end-of-text or at its limit, so the last step of
an answer can count tokens that were not emitted; `emitted_acceptance_length` is free of that.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Self

from eval.answers import Answer
from eval.errors import MeasurementError
from eval.spec import Frozen

_SAMPLE = re.compile(r"^(vllm:\w+)\{(.*)\}\s+(\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREFIX = "vllm:spec_decode_num_"


class AcceptanceCounts(Frozen):
    """Drafts and what became of them. Sums of these mean something, means of rates do not."""

    num_drafts: int = 0
    """Verify steps that had at least one proposed token."""
    num_draft_tokens: int = 0
    num_accepted: int = 0
    """Accepted draft tokens; the bonus token of each step is not among them."""
    accepted_at: tuple[int, ...] = ()
    """Drafts that accepted at least i + 1 tokens, for i = 0..K-1: never increasing."""

    @classmethod
    def from_histogram(cls, histogram: Sequence[int], num_draft_tokens: int) -> Self:
        """From the number of drafts that accepted exactly j = 0..K tokens."""
        return cls(
            num_drafts=sum(histogram),
            num_draft_tokens=num_draft_tokens,
            num_accepted=sum(j * count for j, count in enumerate(histogram)),
            accepted_at=tuple(sum(histogram[i:]) for i in range(1, len(histogram))),
        )

    @property
    def acceptance_length(self) -> float:
        """1 + accepted / drafts, in 1..K+1. Raises MeasurementError when nothing was drafted."""
        self._require_drafts()
        return 1.0 + self.num_accepted / self.num_drafts

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed tokens, a fraction."""
        self._require_drafts()
        return self.num_accepted / self.num_draft_tokens

    @property
    def acceptance_rate_at(self) -> tuple[float, ...]:
        """Share of drafts whose token i was accepted: unconditional, sums to AL - 1."""
        self._require_drafts()
        return tuple(count / self.num_drafts for count in self.accepted_at)

    @property
    def conditional_acceptance_rate_at(self) -> tuple[float | None, ...]:
        """Share of token i accepted where token i - 1 was; None where there was no such draft."""
        self._require_drafts()
        earlier = (self.num_drafts, *self.accepted_at)
        return tuple(
            count / before if before else None
            for before, count in zip(earlier, self.accepted_at, strict=False)
        )

    def __add__(self, other: "AcceptanceCounts") -> "AcceptanceCounts":
        return self._combine(other, 1)

    def __sub__(self, other: "AcceptanceCounts") -> "AcceptanceCounts":
        return self._combine(other, -1)

    def require_consistent(self) -> None:
        """Asserts what must hold of any counts: the identity AL = 1 + sum of rates, and order.

        Raises:
            MeasurementError: The counts contradict each other.
        """
        at = self.accepted_at
        is_ordered = all(a >= b for a, b in zip((self.num_drafts, *at), at, strict=False))
        if self.num_drafts and not math.isclose(
            self.acceptance_length, 1.0 + sum(self.acceptance_rate_at), abs_tol=1e-9
        ):
            raise MeasurementError(
                f"acceptance length {self.acceptance_length:.6f} is not 1 + the sum of the rates "
                f"{self.acceptance_rate_at}: {self}"
            )
        if not is_ordered or min((*at, self.num_accepted, self.num_draft_tokens), default=0) < 0:
            raise MeasurementError(f"counts by position must not increase or be negative: {self}")

    def _combine(self, other: "AcceptanceCounts", sign: int) -> "AcceptanceCounts":
        width = max(len(self.accepted_at), len(other.accepted_at))
        left = self.accepted_at + (0,) * (width - len(self.accepted_at))
        right = other.accepted_at + (0,) * (width - len(other.accepted_at))
        return AcceptanceCounts(
            num_drafts=self.num_drafts + sign * other.num_drafts,
            num_draft_tokens=self.num_draft_tokens + sign * other.num_draft_tokens,
            num_accepted=self.num_accepted + sign * other.num_accepted,
            accepted_at=tuple(a + sign * b for a, b in zip(left, right, strict=True)),
        )

    def _require_drafts(self) -> None:
        if not self.num_drafts:
            raise MeasurementError(
                "nothing was drafted, so there is no acceptance length",
                "longer answers are needed, or the server does not speculate",
            )


class ServerCounters(Frozen):
    """What a server has counted since it started, summed over its engines."""

    acceptance: AcceptanceCounts
    num_requests: int
    """Requests that ended, in whatever way."""
    num_output_tokens: int

    def agrees_with(self, other: "ServerCounters") -> bool:
        """Whether all counts are equal; a position that was never counted is a zero."""
        difference = self - other
        counts = difference.acceptance
        return not any(
            (
                difference.num_requests,
                difference.num_output_tokens,
                counts.num_drafts,
                counts.num_draft_tokens,
                counts.num_accepted,
                *counts.accepted_at,
            )
        )

    def __sub__(self, other: "ServerCounters") -> "ServerCounters":
        return ServerCounters(
            acceptance=self.acceptance - other.acceptance,
            num_requests=self.num_requests - other.num_requests,
            num_output_tokens=self.num_output_tokens - other.num_output_tokens,
        )


def parse_counters(metrics: str, model: str) -> ServerCounters:
    """Reads the text of `/metrics` for one served model; absent counters are zero."""
    totals: dict[str, float] = {}
    at: dict[int, float] = {}
    for line in metrics.splitlines():
        sample = _SAMPLE.match(line)
        if not sample or not sample.group(1).endswith("_total"):
            continue
        name, value = sample.group(1), float(sample.group(3))
        labels = dict(_LABEL.findall(sample.group(2)))
        if labels.get("model_name") != model:
            continue
        if name == f"{_PREFIX}accepted_tokens_per_pos_total":
            position = int(labels["position"])
            at[position] = at.get(position, 0.0) + value
        else:
            totals[name] = totals.get(name, 0.0) + value
    acceptance = AcceptanceCounts(
        num_drafts=int(totals.get(f"{_PREFIX}drafts_total", 0)),
        num_draft_tokens=int(totals.get(f"{_PREFIX}draft_tokens_total", 0)),
        num_accepted=int(totals.get(f"{_PREFIX}accepted_tokens_total", 0)),
        accepted_at=tuple(int(at[position]) for position in sorted(at)),
    )
    return ServerCounters(
        acceptance=acceptance,
        num_requests=int(totals.get("vllm:request_success_total", 0)),
        num_output_tokens=int(totals.get("vllm:generation_tokens_total", 0)),
    )


def count_answers(answers: Iterable[Answer]) -> ServerCounters:
    """The same figures from our own answers, by the per-request histograms."""
    acceptance = AcceptanceCounts()
    num_requests = num_tokens = 0
    for answer in answers:
        num_requests += 1
        num_tokens += answer.num_tokens
        if answer.speculation:
            acceptance += AcceptanceCounts.from_histogram(
                answer.speculation.acceptance_histogram, answer.speculation.num_draft_tokens
            )
    return ServerCounters(
        acceptance=acceptance, num_requests=num_requests, num_output_tokens=num_tokens
    )


def require_agreement(own: ServerCounters, server: ServerCounters) -> None:
    """Compares what we received with what the server counted meanwhile.

    Raises:
        MeasurementError: They differ: somebody else used the server, or answers went missing.
    """
    own.acceptance.require_consistent()
    server.acceptance.require_consistent()
    if not own.agrees_with(server):
        raise MeasurementError(
            f"our own count and the server's disagree\n  ours:   {own}\n  server: {server}",
            "another client used this server during the measurement; measure again without it",
        )
