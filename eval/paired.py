"""One measured drafter against another, prompt by prompt: faster or not, by how much, how surely.

Both arms answered the same prompts. Each is held against the baseline of its own measurement, which
takes the machine's speed out; where both shared one baseline it cancels, and times meet times.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from eval.assembly import baseline_for
from eval.counters import AcceptanceCounts
from eval.errors import MeasurementError
from eval.replayresult import DrafterReplay
from eval.result import ALL, BenchResult, Interval
from eval.samples import pair_samples
from eval.spec import Frozen
from eval.speedup import Bootstrap

_FEW_PROMPTS = 2
_MOST_PROMPTS = 100_000

Verdict = Literal["more", "less", "unclear"]


class ArmPrompt(NamedTuple):
    """One prompt in one arm. Seconds and tokens are 0 where no time per token was measured."""

    prompt_id: str
    category: str
    acceptance: AcceptanceCounts | None
    decode_s: float = 0.0
    num_tokens: float = 0.0
    baseline_s: float = 0.0
    num_baseline_tokens: float = 0.0

    @property
    def is_timed(self) -> bool:
        """Whether both this arm and its baseline have a time per token."""
        return self.num_tokens > 0 and self.num_baseline_tokens > 0


class Arm(NamedTuple):
    """A drafter at one K and concurrency, by prompt; None: replayed, so nothing was timed."""

    name: str
    k: int
    concurrency: int | None
    prompts: tuple[ArmPrompt, ...]


class PairedDifference(Frozen):
    """The second arm against the first, over the prompts that both answered."""

    first: str
    second: str
    k: int
    """Of the first arm."""
    concurrency: int | None
    category: str
    num_prompts: int
    speedup_ratio: Interval | None
    """Decode speedup of the second over that of the first: 1.04 is 4 % faster. None: not timed."""
    acceptance_difference: Interval | None
    """Acceptance length of the second less that of the first. None: one of them never drafted."""

    @property
    def is_faster(self) -> Verdict | None:
        """`more` or `less` when the whole interval says so; None when nothing was timed."""
        return None if self.speedup_ratio is None else verdict(self.speedup_ratio, 1.0)

    @property
    def accepts_more(self) -> Verdict | None:
        """The same for acceptance."""
        found = self.acceptance_difference
        return None if found is None else verdict(found, 0.0)


def bench_arm(result: BenchResult, name: str, k: int, concurrency: int) -> Arm:
    """An arm of a bench, each prompt beside its baseline.

    Raises:
        MeasurementError: The bench has no such arm.
    """
    wanted = (name, k, concurrency)
    own = [s for s in result.samples if (s.arm, s.k, s.concurrency) == wanted]
    if not own:
        raise MeasurementError(
            f"expected samples of {name} at K = {k} and {concurrency} at once, found none in the "
            f"bench of {result.started_at}"
        )
    baseline = [
        s for s in baseline_for(result.samples, own[0].session) if s.concurrency == concurrency
    ]
    timed = {sample.prompt_id: base for base, sample in pair_samples(baseline, own)}
    prompts = []
    for sample in own:
        base = timed.get(sample.prompt_id)
        times = (
            (sample.decode_s, sample.num_decode_tokens, base.decode_s, base.num_decode_tokens)
            if base
            else ()
        )
        prompts.append(ArmPrompt(sample.prompt_id, sample.category, sample.acceptance, *times))
    return Arm(name, k, concurrency, tuple(prompts))


def replay_arm(drafter: DrafterReplay, k: int) -> Arm:
    """A replayed drafter at one K: what its walk accepts."""
    prompts = [ArmPrompt(p.id, p.category, p.walks[k - 1].acceptance) for p in drafter.prompts]
    return Arm(drafter.drafter, k, None, tuple(prompts))


def paired_differences(
    first: Arm, second: Arm, bootstrap: Bootstrap, *, is_by_category: bool = True
) -> tuple[PairedDifference, ...]:
    """The difference over all prompts that both answered, then in each category.

    Args:
        first: What is compared with.
        second: What is compared.
        bootstrap: How intervals are made.
        is_by_category: False leaves the categories out.

    Raises:
        MeasurementError: They have no prompt in common.
    """
    others = {prompt.prompt_id: prompt for prompt in second.prompts}
    pairs = [(p, others[p.prompt_id]) for p in first.prompts if p.prompt_id in others]
    if not pairs:
        raise MeasurementError(
            f"expected prompts that both {first.name} and {second.name} answered, found none",
            "measure them together: harness bench --drafter A --drafter B",
        )
    categories = dict.fromkeys(one.category for one, _ in pairs)
    groups = {ALL: pairs}
    if len(categories) > 1 and is_by_category:
        groups |= {name: [p for p in pairs if p[0].category == name] for name in categories}
    return tuple(
        PairedDifference(
            first=first.name,
            second=second.name,
            k=first.k,
            concurrency=first.concurrency,
            category=category,
            num_prompts=len(group),
            speedup_ratio=_speedup_ratio(group, bootstrap),
            acceptance_difference=_acceptance_difference(group, bootstrap),
        )
        for category, group in groups.items()
    )


def verdict(interval: Interval, null: float) -> Verdict:
    """Whether a whole interval lies on one side of `null`, the value of no difference."""
    if interval.low is None or interval.high is None:
        return "unclear"
    if interval.low > null:
        return "more"
    return "less" if interval.high < null else "unclear"


def prompts_needed(interval: Interval, null: float, num_prompts: int) -> int | None:
    """How many more prompts would move the interval off `null` if the difference stays; 0: none.

    Intervals shrink with the root of the number of prompts. None where there is no difference or
    no interval to go by.
    """
    if verdict(interval, null) != "unclear":
        return 0
    if interval.low is None or interval.high is None or interval.value == null:
        return None
    towards_null = interval.low if interval.value > null else interval.high
    reach, distance = abs(interval.value - towards_null), abs(interval.value - null)
    return max(math.ceil(num_prompts * (reach / distance) ** 2) - num_prompts, 1)


def speed_sentence(difference: PairedDifference, first: str, second: str) -> str:
    """`B is faster than A by 4.1 % [2.0, 6.3]`, or that they cannot be told apart.

    Args:
        difference: What was found.
        first: The first arm as it is called here.
        second: The other one.
    """
    ratio = difference.speedup_ratio
    if ratio is None:
        return f"whether {second} is faster than {first} was not measured: nothing was timed"
    found = difference.is_faster
    if found == "unclear":
        return _unclear(
            f"the speed of {second} and {first}", percent_text(ratio), difference.num_prompts,
            prompts_needed(ratio, 1.0, difference.num_prompts),
        )  # fmt: skip
    word = "faster" if found == "more" else "slower"
    return f"{second} is {word} than {first} by {percent_text(ratio, is_turned=found == 'less')}"


def acceptance_sentence(difference: PairedDifference, first: str, second: str) -> str:
    """`B accepts 0.12 tokens per step more than A [0.05, 0.19]`, or that it cannot be told."""
    found = difference.acceptance_difference
    if found is None:
        return f"whether {second} accepts more than {first} is not known: one of them never drafted"
    if difference.accepts_more == "unclear":
        return _unclear(
            f"the acceptance of {second} and {first}", f"{found.value:+.2f}{_ends(found, 1.0)}",
            difference.num_prompts, prompts_needed(found, 0.0, difference.num_prompts),
        )  # fmt: skip
    word = "more" if difference.accepts_more == "more" else "fewer"
    sign = 1.0 if word == "more" else -1.0
    tokens = f"{sign * found.value:.2f} tokens per step {word}"
    return f"{second} accepts {tokens} than {first}{_ends(found, sign)}"


def _speedup_ratio(
    pairs: Sequence[tuple[ArmPrompt, ArmPrompt]], bootstrap: Bootstrap
) -> Interval | None:
    """(baseline / own) of the second over that of the first, times per token pooled over prompts.

    Source: decode speedup of docs/measurement.md, of both.
    """
    timed = [pair for pair in pairs if pair[0].is_timed and pair[1].is_timed]
    if not timed:
        return None
    columns = [
        [getattr(pair[side], name) for pair in timed]
        for side in (1, 0)
        for name in ("baseline_s", "num_baseline_tokens", "decode_s", "num_tokens")
    ]

    def ratio(*arrays: Any) -> Any:
        sums = [array.sum(-1) for array in arrays]
        second, first = (
            (base_s / base_tokens) / (own_s / own_tokens)
            for base_s, base_tokens, own_s, own_tokens in (sums[:4], sums[4:])
        )
        return second / first

    return bootstrap.of(columns, ratio)


def _acceptance_difference(
    pairs: Sequence[tuple[ArmPrompt, ArmPrompt]], bootstrap: Bootstrap
) -> Interval | None:
    """Accepted / drafts of the second less those of the first; over prompts that both drafted."""
    drafted = [
        (first.acceptance, second.acceptance)
        for first, second in pairs
        if first.acceptance and second.acceptance
        if first.acceptance.num_drafts and second.acceptance.num_drafts
    ]
    if not drafted:
        return None
    columns = [
        [float(getattr(pair[side], name)) for pair in drafted]
        for side in (1, 0)
        for name in ("num_accepted", "num_drafts")
    ]

    def difference(*arrays: Any) -> Any:
        accepted, drafts, other_accepted, other_drafts = (array.sum(-1) for array in arrays)
        return accepted / drafts - other_accepted / other_drafts

    return bootstrap.of(columns, difference)


def _unclear(what: str, found: str, num_prompts: int, more: int | None) -> str:
    text = f"{what} cannot be told apart at this precision ({found}, {num_prompts} prompts)"
    if num_prompts < _FEW_PROMPTS:
        return f"{text}; one prompt has no interval"
    if more is None:
        return f"{text}; they are equal on these prompts"
    if more > _MOST_PROMPTS:
        return f"{text}; not even {_MOST_PROMPTS:,} more prompts would"
    plural = "s" * (more > 1)
    return f"{text}; about {_two_digits(more):,} more prompt{plural} would"


def _two_digits(number: int) -> int:
    """Rounded up to two significant digits: an estimate claims no more."""
    unit: int = 10 ** max(len(str(number)) - 2, 0)
    return math.ceil(number / unit) * unit


def percent_text(ratio: Interval, *, is_turned: bool = False) -> str:
    """A ratio as `4.1 % [2.0, 6.3]`; turned: how much less than 1 it is."""
    sign = -100.0 if is_turned else 100.0
    value = sign * (ratio.value - 1)
    return f"{value:.1f} %{_ends(ratio, sign, 1.0, digits=1)}"


def _ends(interval: Interval, factor: float, null: float = 0.0, digits: int = 2) -> str:
    """` [low, high]` of factor * (end - null), in order; nothing where there is no interval."""
    if interval.low is None or interval.high is None:
        return ""
    low, high = sorted(factor * (end - null) for end in (interval.low, interval.high))
    return f" [{low:.{digits}f}, {high:.{digits}f}]"
