from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.answers import Answer, Speculation
from eval.counters import AcceptanceCounts, count_answers, parse_counters, require_agreement
from eval.errors import MeasurementError

RECORDED = Path(__file__).parents[2] / "data" / "metrics-vllm-0.32.0.txt"
# Worked by hand: 21 drafts accepted 0 tokens, 8 accepted 1, 1 accepted 2, 2 accepted 3.
COUNTS = AcceptanceCounts.from_histogram((21, 8, 1, 2), num_draft_tokens=96)


def make_answer(histogram: tuple[int, ...], num_tokens: int) -> Answer:
    counts = AcceptanceCounts.from_histogram(histogram, sum(histogram) * 3)
    return Answer(
        prompt_id="p",
        category="chat",
        turn=0,
        text="",
        token_ids=(),
        num_prompt_tokens=3,
        num_tokens=num_tokens,
        finish_reason="length",
        sent_s=0.0,
        ttft_s=0.1,
        latency_s=1.0,
        speculation=Speculation(
            acceptance_histogram=histogram,
            num_spec_steps=counts.num_drafts,
            num_accepted_draft_tokens=counts.num_accepted,
            num_draft_tokens=counts.num_draft_tokens,
        ),
    )


def test_figures_of_a_hand_worked_histogram() -> None:
    assert COUNTS.num_drafts == 32
    assert COUNTS.num_accepted == 16
    assert COUNTS.accepted_at == (11, 3, 2)
    assert COUNTS.acceptance_length == 1.5
    assert COUNTS.acceptance_rate == pytest.approx(16 / 96)
    assert COUNTS.acceptance_rate_at == (11 / 32, 3 / 32, 2 / 32)
    assert COUNTS.conditional_acceptance_rate_at == (11 / 32, 3 / 11, 2 / 3)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=9).filter(sum))
def test_length_is_one_plus_the_sum_of_rates_which_never_increase(histogram: list[int]) -> None:
    counts = AcceptanceCounts.from_histogram(histogram, sum(histogram) * (len(histogram) - 1))
    counts.require_consistent()
    rates = counts.acceptance_rate_at
    assert counts.acceptance_length == pytest.approx(1 + sum(rates))
    assert list(rates) == sorted(rates, reverse=True)
    assert 1 <= counts.acceptance_length <= len(histogram)


def test_recorded_metrics_are_read_and_their_creation_times_are_not() -> None:
    counters = parse_counters(RECORDED.read_text(), "verifier")
    assert counters.acceptance == AcceptanceCounts(
        num_drafts=336, num_draft_tokens=1008, num_accepted=238, accepted_at=(138, 64, 36)
    )
    assert (counters.num_requests, counters.num_output_tokens) == (12, 576)
    counters.acceptance.require_consistent()


def test_engines_are_added_up_and_other_models_left_out() -> None:
    text = RECORDED.read_text()
    two = text + text.replace('engine="0"', 'engine="1"')
    assert parse_counters(two, "verifier").acceptance.num_drafts == 672
    assert parse_counters(two, "other").num_requests == 0


def test_nothing_drafted_is_no_acceptance_length() -> None:
    with pytest.raises(MeasurementError, match="nothing was drafted"):
        _ = AcceptanceCounts().acceptance_length


def test_counts_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(MeasurementError, match="is not 1 \\+ the sum"):
        COUNTS.model_copy(update={"num_accepted": 17}).require_consistent()
    with pytest.raises(MeasurementError, match="must not increase"):
        AcceptanceCounts(
            num_drafts=9, num_draft_tokens=27, num_accepted=7, accepted_at=(2, 3, 2)
        ).require_consistent()


def test_a_second_client_is_noticed() -> None:
    own = count_answers([make_answer((3, 1, 0, 0), 6)])
    require_agreement(own, own)
    with pytest.raises(MeasurementError, match="disagree") as caught:
        require_agreement(own, own.model_copy(update={"num_requests": 2}))
    assert "another client" in str(caught.value.hint)


def test_a_difference_of_counters_undoes_a_sum() -> None:
    other = AcceptanceCounts.from_histogram((1, 1, 1, 1), 12)
    assert (COUNTS + other) - other == COUNTS
