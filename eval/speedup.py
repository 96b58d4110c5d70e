"""Intervals: figures over prompts with their bootstrap uncertainty, the prompt being the unit.

Tokens of one answer are not independent of one another, answers to different prompts are; so whole
prompts are resampled, and a prompt's baseline and drafter times always together (paired).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eval.counters import AcceptanceCounts
from eval.result import Interval
from eval.spec import Frozen

Array = npt.NDArray[np.float64]
_SEED = 20_240_521


class Bootstrap(Frozen):
    """How intervals are made: bias-corrected and accelerated (BCa), deterministic by a seed.

    BCa and not percentile: ratios of sums over few prompts are skewed, and BCa corrects for that
    to second order. Where the jackknife has no variance BCa is undefined, and the figure is then
    known exactly from these prompts: the interval collapses to the value.
    """

    confidence: float = 0.95
    num_resamples: int = 2000

    def ratio(self, numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
        """sum(numerator) / sum(denominator), one pair a prompt: pooled rates, lengths, times."""
        return self.of([numerator, denominator], lambda n, d: n.sum(-1) / d.sum(-1))

    def mean(self, values: Sequence[float]) -> Interval:
        """The plain mean of one value a prompt."""
        return self.of([values], lambda v: v.mean(-1))

    def ratio_of_ratios(
        self,
        top: tuple[Sequence[float], Sequence[float]],
        bottom: tuple[Sequence[float], Sequence[float]],
    ) -> Interval:
        """(sum a / sum b) / (sum c / sum d): two pooled rates against each other, paired."""
        return self.of(
            [*top, *bottom],
            lambda a, b, c, d: (a.sum(-1) / b.sum(-1)) / (c.sum(-1) / d.sum(-1)),
        )

    def geometric_mean_ratio(self, top: Sequence[float], bottom: Sequence[float]) -> Interval:
        """exp(mean(log(top / bottom))): every prompt with equal weight, long or short."""
        return self.of([top, bottom], lambda a, b: np.exp(np.log(a / b).mean(-1)))

    def of(self, columns: Sequence[Sequence[float]], statistic: Callable[..., Any]) -> Interval:
        """The statistic of paired columns (one entry a prompt each), with its interval."""
        data = [np.asarray(column, dtype=np.float64) for column in columns]
        value = float(statistic(*data))
        if len(data[0]) < 2:  # noqa: PLR2004 - one prompt says nothing about another
            return Interval(value=value)
        if _is_exact(data, statistic, value):
            return Interval(value=value, low=value, high=value)
        statistics = load_statistics()
        found = statistics.bootstrap(
            data,
            lambda *sample, axis: statistic(*(np.moveaxis(s, axis, -1) for s in sample)),
            paired=True,
            vectorized=True,
            n_resamples=self.num_resamples,
            confidence_level=self.confidence,
            method="BCa",
            rng=np.random.default_rng(_SEED),
        ).confidence_interval
        return Interval(value=value, low=float(found.low), high=float(found.high))


def length_interval(counts: Iterable[AcceptanceCounts], bootstrap: Bootstrap) -> Interval | None:
    """1 + sum(accepted) / sum(drafts), one entry a prompt; None when nothing was drafted.

    Over prompts that drafted: a resample of others alone would have no ratio.
    Source: vLLM v1/spec_decode/metrics.py, 0.32 (bonus token included).
    """
    drafted = [one for one in counts if one.num_drafts]
    if not drafted:
        return None
    return bootstrap.ratio(
        [one.num_drafts + one.num_accepted for one in drafted],
        [one.num_drafts for one in drafted],
    )


def load_statistics() -> Any:
    """`scipy.stats`, whose import takes a second: to be called where there is time to wait for.

    Late, since a bench that is refused need not wait for it at all.
    """
    from scipy import stats  # noqa: PLC0415

    return stats


def _is_exact(data: list[Array], statistic: Callable[..., Any], value: float) -> bool:
    """Whether leaving out any one prompt changes nothing."""
    without = [
        float(statistic(*(np.delete(column, index) for column in data)))
        for index in range(len(data[0]))
    ]
    return bool(np.allclose(without, value, rtol=1e-12, atol=0))
