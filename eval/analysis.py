"""From samples to rows: every figure of a result with its interval, by category and for all."""

import statistics
from collections.abc import Iterable, Sequence

from eval.costs import explain
from eval.counters import AcceptanceCounts
from eval.result import (
    ALL,
    BaselineRow,
    BenchRow,
    Interval,
    PromptSample,
    TokenSpread,
    categories_of,
)
from eval.samples import pair_samples
from eval.speedup import Bootstrap, length_interval

_MS = 1e3
Pairs = Sequence[tuple[PromptSample, PromptSample]]


def by_category(samples: Sequence[PromptSample]) -> list[tuple[str, list[PromptSample]]]:
    """All samples under `all`, then those of each category, if there are several."""
    names = categories_of(samples)
    groups = [(ALL, list(samples))]
    if len(names) > 1:
        groups += [(name, [s for s in samples if s.category == name]) for name in names]
    return groups


def build_row(
    baseline: Sequence[PromptSample],
    samples: Sequence[PromptSample],
    bootstrap: Bootstrap,
    *,
    digest: str | None,
    k: int,
    category: str,
    tokens_per_s: float,
) -> BenchRow | None:
    """The figures of one drafter over some prompts; None when no prompt gives a time per token.

    Args:
        baseline: The verifier's samples, of at least the same prompts.
        samples: The drafter's samples at one K and concurrency.
        bootstrap: How intervals are made.
        digest: The drafter's root digest.
        k: num_speculative_tokens.
        category: What the row is called.
        tokens_per_s: Output tokens per second of wall time.
    """
    pairs = pair_samples(baseline, samples)
    if not pairs:
        return None
    speedup = decode_speedup(pairs, bootstrap)
    per_step = tokens_per_step(samples, bootstrap)
    cost = per_step.value / speedup.value if per_step else None
    counts = sum_counts(samples)
    has_drafts = counts.num_drafts > 0
    return BenchRow(
        drafter=samples[0].arm,
        digest=digest,
        k=k,
        concurrency=samples[0].concurrency,
        category=category,
        num_prompts=len(samples),
        num_answers=sum(sample.num_turns for sample in samples),
        acceptance=counts,
        acceptance_length=acceptance_length(samples, bootstrap),
        acceptance_length_by_prompt=_length_by_prompt(samples, bootstrap),
        acceptance_length_emitted=emitted_acceptance_length(samples, bootstrap),
        tokens_per_step=per_step,
        acceptance_rate=_acceptance_rate(samples, bootstrap),
        acceptance_rate_at=counts.acceptance_rate_at if has_drafts else (),
        conditional_acceptance_rate_at=counts.conditional_acceptance_rate_at if has_drafts else (),
        decode_speedup=speedup,
        decode_speedup_by_prompt=bootstrap.geometric_mean_ratio(
            [_tpot(base) for base, _ in pairs], [_tpot(sample) for _, sample in pairs]
        ),
        throughput_ratio=throughput_ratio(pairs, bootstrap),
        tpot_ms=tpot_ms([sample for _, sample in pairs], bootstrap),
        baseline_tpot_ms=tpot_ms([base for base, _ in pairs], bootstrap),
        ttft_ms=ttft_ms(samples, bootstrap),
        tokens_per_s=tokens_per_s,
        num_output_tokens=spread_of([sample.num_tokens for sample in samples]),
        step_cost=cost,
        why=explain(per_step.value, cost, speedup.value) if per_step and cost else None,
    )


def build_baseline_row(
    samples: Sequence[PromptSample],
    bootstrap: Bootstrap,
    *,
    category: str,
    tokens_per_s: float,
    drift: float | None,
) -> BaselineRow | None:
    """The verifier alone over some prompts; None when no prompt gives a time per token."""
    pairs = pair_samples(samples, samples)
    if not pairs:
        return None
    timed = [sample for _, sample in pairs]
    return BaselineRow(
        concurrency=samples[0].concurrency,
        category=category,
        num_prompts=len({sample.prompt_id for sample in samples}),
        tpot_ms=tpot_ms(timed, bootstrap),
        ttft_ms=ttft_ms(samples, bootstrap),
        tokens_per_s=tokens_per_s,
        drift=drift,
    )


def decode_speedup(pairs: Pairs, bootstrap: Bootstrap) -> Interval:
    """Pooled TPOT of the baseline over the drafter's: (sum t_b / sum n_b) / (sum t_d / sum n_d)."""
    return bootstrap.ratio_of_ratios(
        ([b.decode_s for b, _ in pairs], [b.num_decode_tokens for b, _ in pairs]),
        ([s.decode_s for _, s in pairs], [s.num_decode_tokens for _, s in pairs]),
    )


def throughput_ratio(pairs: Pairs, bootstrap: Bootstrap) -> Interval:
    """Tokens per second of request time, prefill included, over the baseline's.

    With a fixed number of requests under way this is the ratio of throughputs (Little's law).
    """
    return bootstrap.ratio_of_ratios(
        ([s.num_tokens for _, s in pairs], [s.latency_s for _, s in pairs]),
        ([b.num_tokens for b, _ in pairs], [b.latency_s for b, _ in pairs]),
    )


def acceptance_length(samples: Sequence[PromptSample], bootstrap: Bootstrap) -> Interval | None:
    """1 + sum(accepted) / sum(drafts) over prompts; None when nothing was drafted."""
    return length_interval([s.acceptance for s in samples if s.acceptance], bootstrap)


def emitted_acceptance_length(
    samples: Sequence[PromptSample], bootstrap: Bootstrap
) -> Interval | None:
    """Tokens that drafts emitted, over drafts: blind to tokens accepted and then cut off.

    The first token of an answer comes from the prefill, without a draft.
    """
    drafted = _drafted(samples)
    if not drafted:
        return None
    return bootstrap.ratio(
        [sample.num_decode_tokens - sample.num_undrafted_steps for sample, _ in drafted],
        [counts.num_drafts for _, counts in drafted],
    )


def tokens_per_step(samples: Sequence[PromptSample], bootstrap: Bootstrap) -> Interval | None:
    """Tokens after the first over decode steps, with and without a draft."""
    drafted = _drafted(samples)
    if not drafted:
        return None
    return bootstrap.ratio(
        [sample.num_decode_tokens for sample, _ in drafted],
        [counts.num_drafts + sample.num_undrafted_steps for sample, counts in drafted],
    )


def tpot_ms(samples: Sequence[PromptSample], bootstrap: Bootstrap) -> Interval:
    """Milliseconds per token after the first, pooled over prompts."""
    return bootstrap.ratio(
        [_MS * sample.decode_s for sample in samples],
        [sample.num_decode_tokens for sample in samples],
    )


def ttft_ms(samples: Sequence[PromptSample], bootstrap: Bootstrap) -> Interval:
    """Milliseconds to the first token, mean over turns."""
    return bootstrap.ratio(
        [_MS * sample.ttft_s for sample in samples], [sample.num_turns for sample in samples]
    )


def spread_of(lengths: Sequence[int]) -> TokenSpread:
    """Mean, median and ends of answer lengths in tokens."""
    return TokenSpread(
        total=sum(lengths),
        mean=statistics.fmean(lengths),
        minimum=min(lengths),
        median=statistics.median(lengths),
        maximum=max(lengths),
    )


def sum_counts(samples: Iterable[PromptSample]) -> AcceptanceCounts:
    """The acceptance counts of all samples together, checked."""
    total = AcceptanceCounts()
    for sample in samples:
        total += sample.acceptance or AcceptanceCounts()
    total.require_consistent()
    return total


def _tpot(sample: PromptSample) -> float:
    return sample.decode_s / sample.num_decode_tokens


def _drafted(
    samples: Sequence[PromptSample],
) -> list[tuple[PromptSample, AcceptanceCounts]]:
    return [(s, s.acceptance) for s in samples if s.acceptance and s.acceptance.num_drafts]


def _acceptance_rate(samples: Sequence[PromptSample], bootstrap: Bootstrap) -> Interval | None:
    drafted = _drafted(samples)
    if not drafted:
        return None
    return bootstrap.ratio(
        [counts.num_accepted for _, counts in drafted],
        [counts.num_draft_tokens for _, counts in drafted],
    )


def _length_by_prompt(samples: Sequence[PromptSample], bootstrap: Bootstrap) -> Interval | None:
    drafted = _drafted(samples)
    return bootstrap.mean([c.acceptance_length for _, c in drafted]) if drafted else None
