"""Which of vLLM's settings make decoding with a drafter faster on this machine, tried one by one.

A setting is kept when it is faster at some number of requests at once and slower at none, each by
the whole interval of the paired times per token, and changes no greedy answer more than before.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pydantic import Field

from eval.assembly import bootstrap_of
from eval.errors import EvalError
from eval.paired import Arm, bench_arm, paired_differences, verdict
from eval.result import BenchResult, Interval
from eval.spec import Frozen, ServerOptions

START = "as it is"
REPEATED = "as it was, again"
_BUSY = 4
"""Requests at once above which a shorter draft is tried."""

MeasureFn = Callable[[str, ServerOptions], BenchResult]
"""Measures the drafter under a setting of this name."""


class Setting(Frozen):
    """A change of how vLLM is started."""

    name: str
    why: str
    """What it saves where it helps."""
    extra_args: tuple[str, ...] = ()
    speculative_config: dict[str, Any] = Field(default_factory=dict)
    enforce_eager: bool | None = None

    def applied_to(self, options: ServerOptions) -> ServerOptions:
        """The options with this change; the same where they have it already."""
        is_there = set(self.extra_args) <= set(options.extra_args)
        eager = options.enforce_eager if self.enforce_eager is None else self.enforce_eager
        return options.model_copy(
            update={
                "extra_args": options.extra_args + (() if is_there else self.extra_args),
                "speculative_config": {**options.speculative_config, **self.speculative_config},
                "enforce_eager": eager,
            }
        )


class Trial(Frozen):
    """One setting as it was tried, on top of those kept before it."""

    name: str
    why: str
    tpot_ms: dict[int, float]
    """Time per token with the drafter by requests at once; empty where it did not start."""
    faster: dict[int, Interval]
    """Time per token before over that with it, by requests at once: 1.05 is 5 % faster."""
    is_kept: bool
    problem: str | None = None
    """Why it could not be measured, or must not be kept however fast."""


class Tuning(Frozen):
    """What was tried, and how vLLM is to be started."""

    trials: tuple[Trial, ...]
    drift: dict[int, Interval]
    """Of the first settings measured again at the end, as in `Trial.faster`."""
    options: ServerOptions


def settings_for(device: str, k: int, busy: int, *, is_sampling: bool) -> tuple[Setting, ...]:
    """The cheap ones to try, those first that often help most.

    Args:
        device: `cpu` or `cuda`.
        k: Tokens proposed per draft.
        busy: The most requests at once.
        is_sampling: Answers are sampled, at a temperature above 0.
    """
    if device == "cpu":
        return (_ONE_TABLE, _COMPILED)
    found = [_ONE_TABLE, _FULL_GRAPHS, _FINE_GRAPHS, _ASYNC, _SYNC]
    if busy > _BUSY and k > 1:
        found.append(_shorter_when_busy(k, busy))
    if is_sampling:
        found.append(_SAMPLED_DRAFTS)
    return tuple(found)


def tune(
    options: ServerOptions, settings: Sequence[Setting], measure: MeasureFn, max_drift: float
) -> Tuning:
    """Tries settings in turn, each on top of those that were kept.

    Args:
        options: How vLLM is started now.
        settings: What to try.
        measure: Measures one drafter at one K.
        max_drift: Relative change of the machine's speed, between the start and the end, above
            which nothing is kept.

    Raises:
        EvalError: It cannot be measured as it is.
    """
    first = best = measure(START, options)
    kept, trials = options, [_trial(Setting(name=START, why=""), first, {}, is_kept=True)]
    for setting in settings:
        changed = setting.applied_to(kept)
        if changed == kept:
            continue
        try:
            found = measure(setting.name, changed)
        except EvalError as error:
            trials.append(_trial(setting, None, {}, problem=error.cause))
            continue
        faster = dict(_ratios(best, found))
        problem = _loss(best, found)
        is_kept = problem is None and is_worth_keeping(faster.values())
        trials.append(_trial(setting, found, faster, is_kept=is_kept, problem=problem))
        if is_kept:
            kept, best = changed, found
    drift = dict(_ratios(first, measure(REPEATED, options)))
    if any(abs(math.log(ratio.value)) > math.log1p(max_drift) for ratio in drift.values()):
        return Tuning(trials=_without_gains(trials), drift=drift, options=options)
    return Tuning(trials=tuple(trials), drift=drift, options=kept)


def is_worth_keeping(ratios: Iterable[Interval]) -> bool:
    """Whether something got faster and nothing slower, beyond the intervals."""
    verdicts = [verdict(ratio, 1.0) for ratio in ratios]
    return "more" in verdicts and "less" not in verdicts


def _loss(before: BenchResult, after: BenchResult) -> str | None:
    """What became less lossless: answers that differ where the verifier saw no near tie."""
    num_before, num_after = (
        sum(row.lossless.num_broken for row in result.pooled() if row.lossless)
        for result in (before, after)
    )
    if num_after <= num_before:
        return None
    return (
        f"{num_after} greedy answers differ from the verifier's where it saw no near tie, "
        f"{num_before} before"
    )


def _ratios(before: BenchResult, after: BenchResult) -> Iterator[tuple[int, Interval]]:
    """Requests at once, and how many times faster the second decodes.

    Both are of one drafter and K: seconds per token, pooled over the prompts that both answered.
    """
    name, k = after.spec.arm_names[0], after.spec.k[0]
    for concurrency in after.spec.concurrency:
        first, second = (
            _by_own_time(bench_arm(result, name, k, concurrency)) for result in (before, after)
        )
        (found,) = paired_differences(first, second, bootstrap_of(after.spec), is_by_category=False)
        if found.speedup_ratio is not None:
            yield concurrency, found.speedup_ratio


def _by_own_time(arm: Arm) -> Arm:
    """The arm against a clock: a baseline of one second a token, the same before and after."""
    clocked = (p._replace(baseline_s=1.0, num_baseline_tokens=1.0) for p in arm.prompts)
    return arm._replace(prompts=tuple(clocked))


def _trial(
    setting: Setting,
    found: BenchResult | None,
    faster: dict[int, Interval],
    *,
    is_kept: bool = False,
    problem: str | None = None,
) -> Trial:
    tpot_ms = {row.concurrency: row.tpot_ms.value for row in found.pooled()} if found else {}
    return Trial(
        name=setting.name,
        why=setting.why,
        tpot_ms=tpot_ms,
        faster=faster,
        is_kept=is_kept,
        problem=problem,
    )


def _without_gains(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    return tuple(t if t.name == START else t.model_copy(update={"is_kept": False}) for t in trials)


_ONE_TABLE = Setting(
    name="one block table",
    why="layers with a window and layers without share a table of cache blocks; by itself vLLM "
    "makes groups as large as the smaller kind: one for each layer, beside a drafter of one",
    extra_args=("--disable-hybrid-kv-cache-manager",),
)
_COMPILED = Setting(
    name="compiled",
    why="the layers' small operations are joined; a start takes longer",
    enforce_eager=False,
)
_FULL_GRAPHS = Setting(
    name="full graphs",
    why="one launch a step where the attention allows it, instead of some for each layer",
    extra_args=("--compilation-config", '{"cudagraph_mode": "FULL"}'),
)
_FINE_GRAPHS = Setting(
    name="graphs of every small size",
    why="a batch of few tokens is not padded to the next larger graph",
    extra_args=("--performance-mode", "interactivity"),
)
_ASYNC = Setting(
    name="asynchronous scheduling",
    why="the next step is prepared while the GPU computes",
    extra_args=("--async-scheduling",),
)
_SYNC = Setting(
    name="synchronous scheduling",
    why="accepted tokens are known before the next step is prepared",
    extra_args=("--no-async-scheduling",),
)
_SAMPLED_DRAFTS = Setting(
    name="sampled drafts",
    why="sampled answers accept more of drafts that are sampled, too",
    speculative_config={"draft_sample_method": "probabilistic"},
)


def _shorter_when_busy(k: int, busy: int) -> Setting:
    """A draft of one token where many requests share a step, which verifying fills by itself."""
    return Setting(
        name=f"one token a draft above {_BUSY} requests",
        why="verifying long drafts is dear once the batch keeps the GPU busy",
        speculative_config={
            "num_speculative_tokens_per_batch_size": [[1, _BUSY, k], [_BUSY + 1, busy, 1]]
        },
    )
