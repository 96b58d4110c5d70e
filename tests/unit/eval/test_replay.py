"""What a replay counts, worked by hand: walk, all positions, ceiling, what lies past the end."""

import numpy as np
import pytest
from fakes.replays import (
    KNOWN,
    OTHER,
    answer_row,
    exact_parts,
    one_token_drafter,
    replay_answers,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.errors import SpecError
from eval.replay import check_greedy, trace
from eval.sequences import Span
from eval.tokentext import split_text
from eval.walk import Draft, count_everywhere, walk_drafts, walk_row

ANSWER = Span(2, 9)
DEPTHS = np.array([-1, 2, 0, 1, 3, 0, 1, 0, 0])
"""By entry; entry i says how many of the tokens i + 2, i + 3, ... are proposed rightly."""

PROPERTY = settings(deadline=None, max_examples=25)
Answer = st.lists(st.sampled_from([KNOWN, OTHER]), min_size=1, max_size=14)
Beyond = st.lists(st.sampled_from([KNOWN, OTHER]), min_size=5, max_size=5)


def test_a_walk_jumps_over_what_was_accepted_and_the_bonus_token() -> None:
    assert walk_drafts(DEPTHS, ANSWER, 1) == [
        Draft(1, 1, 2), Draft(3, 1, 2), Draft(5, 0, 1), Draft(6, 1, 1),
    ]  # fmt: skip


def test_the_last_draft_counts_what_it_accepted_past_the_end_but_emits_less() -> None:
    drafts = walk_drafts(DEPTHS, ANSWER, 3)
    assert drafts == [Draft(1, 2, 3), Draft(4, 3, 3)]
    num_first_tokens = 1
    assert num_first_tokens + sum(d.num_emitted for d in drafts) == ANSWER.end - ANSWER.begin


def test_the_counts_of_a_walk_are_those_of_a_server() -> None:
    row = answer_row([KNOWN] * 7)
    walk = walk_row(row, DEPTHS, 3)
    assert walk.acceptance.num_drafts == 2
    assert walk.acceptance.num_accepted == 5
    assert walk.acceptance.accepted_at == (2, 2, 1)
    assert walk.acceptance.acceptance_length == 1 + 5 / 2
    assert walk.emitted_length == 6 / 2


def test_all_positions_are_those_whose_k_next_tokens_lie_in_the_answer() -> None:
    row = answer_row([KNOWN] * 7)
    counts = count_everywhere(row, DEPTHS, 3)  # entries 1 to 4: depths 2, 0, 1, 3
    assert (counts.num_drafts, counts.num_accepted, counts.accepted_at) == (4, 6, (3, 2, 1))


def test_a_drafter_that_is_right_everywhere_has_length_k_plus_1() -> None:
    found = replay_answers([answer_row([KNOWN] * 9, beyond=[KNOWN] * 3)])
    for row in found.rows:
        assert row.acceptance_length is not None
        assert row.acceptance_length.value == row.k + 1
        assert row.everywhere_length is not None
        assert row.everywhere_length.value == row.k + 1
    assert found.pooled().ceiling == found.pooled().acceptance_length_emitted.value


def test_a_drafter_that_is_never_right_has_length_1_and_says_why() -> None:
    found = replay_answers([answer_row([OTHER] * 9)])
    assert found.pooled().acceptance_length.value == 1
    assert found.pooled().ceiling == 1
    assert [(row.label, row.share) for row in found.by_token] == [("outside", 1.0)]


def test_what_is_accepted_past_the_end_counts_only_where_it_is_known() -> None:
    known = replay_answers([answer_row([KNOWN] * 3, beyond=[KNOWN] * 2)]).pooled()
    unknown = replay_answers([answer_row([KNOWN] * 3)]).pooled()
    assert (known.acceptance.num_drafts, known.acceptance.num_accepted) == (1, 3)
    assert (unknown.acceptance.num_drafts, unknown.acceptance.num_accepted) == (1, 2)
    assert known.acceptance_length_emitted == unknown.acceptance_length_emitted


def test_the_next_question_is_not_accepted_as_the_end_of_the_answer_before_it() -> None:
    one = answer_row([OTHER, KNOWN, KNOWN, KNOWN, KNOWN, OTHER, KNOWN, KNOWN])
    turns = one._replace(spans=(Span(2, 5), Span(7, 10)))
    walk = walk_row(turns, np.array([-1, 3, 2, 1, 0, -1, 2, 1, 0]), 3)
    assert walk.acceptance.accepted_at == (2, 2, 0)
    assert walk.num_emitted == 4


def test_hidden_states_that_are_no_numbers_are_refused_and_not_counted_as_wrong() -> None:
    for value in (float("nan"), float("inf")):
        row = answer_row([KNOWN] * 4, name="q7")
        states = row.load_states().clone()
        states[3, 1, 2] = value
        with pytest.raises(SpecError, match=r"q7: expected finite hidden states, .* at token 3"):
            replay_answers([row._replace(load_states=lambda states=states: states)])


def test_prompts_that_draft_nothing_leave_the_intervals_whole() -> None:
    rows = [answer_row([KNOWN, OTHER, KNOWN][: i + 1] * 2, name=str(i)) for i in range(3)]
    short = [answer_row([OTHER], name=f"short {i}") for i in range(3)]
    found, alone = replay_answers([*rows, *short]).pooled(), replay_answers(rows).pooled()
    assert found.num_prompts == 6
    assert found.acceptance_length == alone.acceptance_length
    assert found.acceptance_length_emitted == alone.acceptance_length_emitted
    assert found.acceptance_length_emitted.low <= found.acceptance_length_emitted.value


def test_an_answer_of_two_tokens_drafts_once_and_one_of_one_token_never() -> None:
    assert replay_answers([answer_row([OTHER, OTHER])]).pooled().acceptance.num_drafts == 1
    nothing = replay_answers([answer_row([OTHER])]).pooled()
    assert nothing.acceptance.num_drafts == 0
    assert nothing.acceptance_length is None
    assert nothing.acceptance_rate_at == ()


@PROPERTY
@given(answers=st.lists(Answer, min_size=1, max_size=4), beyond=Beyond, k=st.integers(1, 5))
def test_the_walk_is_that_of_a_server_that_speculates_token_by_token(
    answers: list[list[int]], beyond: list[int], k: int
) -> None:
    rows = [answer_row(a, name=str(i), beyond=beyond) for i, a in enumerate(answers)]
    found = replay_answers(rows, k)
    for smaller in range(1, k + 1):
        served = [serve(answer, beyond, smaller) for answer in answers]
        counts = found.pooled(smaller).acceptance
        assert counts.num_drafts == sum(drafts for drafts, _ in served)
        assert counts.num_accepted == sum(accepted for _, accepted in served)


@PROPERTY
@given(answer=Answer, k=st.integers(1, 5))
def test_rates_over_all_positions_fall_and_sum_to_length_less_1(answer: list[int], k: int) -> None:
    found = replay_answers([answer_row(answer)], k)
    for smaller in range(1, k + 1):
        row = found.pooled(smaller)
        rates = row.everywhere_rate_at
        assert list(rates) == sorted(rates, reverse=True)
        if row.everywhere_length:
            assert row.everywhere_length.value == pytest.approx(1 + sum(rates))
        largest = found.pooled(k).everywhere
        assert row.everywhere.accepted_at == largest.accepted_at[:smaller]


@settings(deadline=None, max_examples=8)
@given(answers=st.lists(Answer, min_size=1, max_size=5), budget=st.integers(1, 60))
def test_the_token_budget_changes_no_count(answers: list[list[int]], budget: int) -> None:
    rows = [answer_row(a, name=str(i)) for i, a in enumerate(answers)]
    model = one_token_drafter()
    whole = {found.row.id: found.depths.tolist() for found in trace(model, rows, 3)}
    parts = trace(model, rows, 3, budget_tokens=budget)
    assert {found.row.id: found.depths.tolist() for found in parts} == whole


def test_places_and_tokens_hold_every_position_once() -> None:
    rows = [answer_row([KNOWN, OTHER] * 10, name=str(i)) for i in range(3)]
    found = replay_answers(rows)
    positions = found.pooled().everywhere.num_drafts
    assert sum(row.num_entries for row in found.by_position) == positions
    assert sum(row.num_entries for row in found.by_token) == positions
    assert [row.label for row in found.by_position] == ["1 to 8", "9 to 16", "17 to 32"]


def test_turns_of_one_prompt_are_one_prompt() -> None:
    rows = [answer_row([KNOWN] * 5, name="same"), answer_row([OTHER] * 5, name="same")]
    found = replay_answers(rows)
    assert found.pooled().num_prompts == 1
    assert found.pooled().acceptance.num_drafts == sum(
        walk_row(t.row, t.depths, 3).acceptance.num_drafts
        for t in trace(one_token_drafter(), rows, 3)
    )


def test_examples_show_the_whole_answer_and_where_each_token_came_from() -> None:
    found = replay_answers([answer_row([OTHER, KNOWN, OTHER, OTHER])])
    (example,) = found.examples
    assert [piece.kind for piece in example.pieces] == [
        "prefill", "accepted", "verifier", "verifier",
    ]  # fmt: skip
    assert "".join(p.text for p in example.pieces) == f" <{OTHER}> <{KNOWN}> <{OTHER}> <{OTHER}>"


def test_answers_that_the_verifier_would_not_give_are_counted() -> None:
    row = answer_row([KNOWN, OTHER] * 5)
    assert check_greedy([row], exact_parts()).share_unequal == 0
    changed = row._replace(token_ids=(*row.token_ids[:5], 0, *row.token_ids[6:]))
    found = check_greedy([changed], exact_parts())
    assert (found.num_checked, found.num_equal) == (10, 9)


def test_of_many_answer_tokens_some_of_every_row_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eval.replay._MOST_CHECKED", 4)
    rows = [answer_row([KNOWN, OTHER] * 5) for _ in range(2)]
    wrong = [row._replace(token_ids=(*row.token_ids[:1], *[0] * 10)) for row in rows]
    for mixed in ([rows[0], wrong[1]], [wrong[0], rows[1]]):
        found = check_greedy(mixed, exact_parts())
        assert found.num_checked == 4
        assert 0 < found.num_equal < 4


def test_states_of_other_layers_are_refused_with_both_numbers() -> None:
    row = answer_row([KNOWN] * 4)
    fewer = row._replace(load_states=lambda: row.load_states()[:, 1:])
    with pytest.raises(SpecError, match=r"expected hidden states of 4 layers by 8.*found \(3, 8\)"):
        trace(one_token_drafter(), [fewer], 3)


def test_states_of_fewer_tokens_are_refused() -> None:
    row = answer_row([KNOWN] * 4)
    shorter = row._replace(load_states=lambda: row.load_states()[:-1])
    with pytest.raises(SpecError, match="expected hidden states of 6 tokens, found 5"):
        trace(one_token_drafter(), [shorter], 3)


def test_no_answers_are_an_error_and_not_a_length() -> None:
    with pytest.raises(SpecError, match="expected answers to replay, found none"):
        trace(one_token_drafter(), [], 3)


def test_a_character_of_two_tokens_is_shown_with_the_second() -> None:
    raw = [b"a", "é".encode()[:1], "é".encode()[1:], b"b"]

    def decode(ids: object) -> str:
        return b"".join(raw[i] for i in ids).decode(errors="replace")  # type: ignore[attr-defined]

    assert split_text(decode, [0, 1, 2, 3]) == ["a", "", "é", "b"]
    assert split_text(decode, [0, 1]) == ["a", "�"]


def serve(answer: list[int], beyond: list[int], k: int) -> tuple[int, int]:
    """Drafts and accepted tokens of a server that proposes the known token k times in each step."""
    said, length, drafts, accepted = [*answer, *beyond], 1, 0, 0
    while length < len(answer):
        right = 0
        while right < k and said[length + right] == KNOWN:
            right += 1
        drafts += 1
        accepted += right
        length += right + 1
    return drafts, accepted
