"""The gates against the champion: figures of one bench, paired by prompt, interval against limit.

Candidate and champion each stand at the K that ranks best for them: that is how either would serve.
"""

from eval.assembly import bootstrap_of
from eval.paired import Arm, PairedDifference, bench_arm, paired_differences, prompts_needed
from eval.result import ALL, BenchRow, Interval
from harness.config.policy import Policy
from harness.tracking import names
from harness.tracking.decisions import Gate
from harness.tracking.evidence import Evidence
from harness.tracking.gates import gate, low_end

_GAIN = "acceptance_length less the champion's"
_RATIO = "decode_speedup over the champion's"
_CATEGORY = "{category} against the champion"


def asks_for_champion(policy: Policy) -> bool:
    """Whether any gate compares with the champion."""
    bounds = (policy.min_acceptance_gain, policy.min_speedup_ratio, policy.max_category_regression)
    return any(bound is not None for bound in bounds)


def planned_against(policy: Policy) -> list[Gate]:
    """What will be asked once champion and candidate are measured together."""
    gates = []
    if policy.min_acceptance_gain is not None:
        gates.append(low_end(_GAIN, policy.min_acceptance_gain, None, is_measured=False))
    if policy.min_speedup_ratio is not None:
        gates.append(low_end(_RATIO, policy.min_speedup_ratio, None, is_measured=False))
    if policy.max_category_regression is not None:
        name = _CATEGORY.format(category="each category")
        bound = 1 - policy.max_category_regression
        gates.append(low_end(name, bound, None, is_measured=False))
    return gates


def check_against(policy: Policy, evidence: Evidence, champion: BenchRow) -> list[Gate]:
    """The gates that hold a candidate against the champion, both measured by one bench.

    Args:
        policy: What is asked.
        evidence: The bench and the candidate's row.
        champion: The champion's row in the same bench.

    Raises:
        MeasurementError: The bench holds no samples of one of them.
    """
    if not asks_for_champion(policy):
        return []
    result, row = evidence.result, evidence.row
    arms = [bench_arm(result, r.drafter, r.k, r.concurrency) for r in (champion, row)]
    pooled, *categories = paired_differences(arms[0], arms[1], bootstrap_of(result.spec))
    gates = []
    if (bound := policy.min_acceptance_gain) is not None:
        gain = pooled.acceptance_difference
        gates.append(_told(low_end(_GAIN, bound, gain), gain, bound, pooled))
    if (bound := policy.min_speedup_ratio) is not None:
        ratio = pooled.speedup_ratio
        gates.append(_told(low_end(_RATIO, bound, ratio), ratio, bound, pooled))
    if policy.max_category_regression is not None:
        bound = 1 - policy.max_category_regression
        for difference in categories or [pooled]:
            kept = _share_kept(policy, arms[0], difference)
            name = _CATEGORY.format(category=difference.category)
            gates.append(_told(low_end(name, bound, kept), kept, bound, difference))
    return gates


def _share_kept(policy: Policy, champion: Arm, difference: PairedDifference) -> Interval | None:
    """The candidate's figure as a share of the champion's, 1 where they are equal."""
    if policy.rank_by == names.METRIC_DECODE_SPEEDUP:
        return difference.speedup_ratio
    counts = [
        prompt.acceptance
        for prompt in champion.prompts
        if prompt.acceptance and difference.category in {ALL, prompt.category}
    ]
    drafts, gain = sum(count.num_drafts for count in counts), difference.acceptance_difference
    if gain is None or not drafts:
        return None
    length = 1 + sum(count.num_accepted for count in counts) / drafts
    low, high = (None if end is None else 1 + end / length for end in (gain.low, gain.high))
    return Interval(value=1 + gain.value / length, low=low, high=high)


def _told(
    answer: Gate, figure: Interval | None, bound: float, difference: PairedDifference
) -> Gate:
    """A gate that failed for want of prompts says about how many more it would take."""
    if answer.is_passed or figure is None or figure.value <= bound:
        return answer
    more = prompts_needed(figure, bound, difference.num_prompts)
    found = f"{answer.found} over {difference.num_prompts} prompts"
    if more:
        found += f"; about {more:,} more would tell"
    return gate(answer.name, answer.required, found, answer.is_passed)
