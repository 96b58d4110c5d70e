from eval.answers import Answer
from eval.lossless import read_gap
from eval.result import Divergence
from eval.samples import compare_answers


def make_answer(prompt_id: str, token_ids: tuple[int, ...], turn: int = 0) -> Answer:
    return Answer(
        prompt_id=prompt_id,
        category="chat",
        turn=turn,
        text="",
        token_ids=token_ids,
        num_prompt_tokens=1,
        num_tokens=len(token_ids),
        finish_reason="length",
        sent_s=0.0,
        ttft_s=0.1,
        latency_s=1.0,
    )


EXPECTED = {("p", 0): make_answer("p", (1, 2, 3)), ("p", 1): make_answer("p", (4, 5), turn=1)}


def test_equal_answers_are_counted_as_equal() -> None:
    lossless = compare_answers(EXPECTED.values(), EXPECTED)
    assert lossless is not None
    assert (lossless.num_compared, lossless.num_equal, lossless.is_broken) == (2, 2, False)


def test_the_first_different_token_is_found_and_later_turns_are_not_compared() -> None:
    answers = [make_answer("p", (1, 9, 3)), make_answer("p", (8,), turn=1)]
    lossless = compare_answers(answers, EXPECTED)
    assert lossless is not None
    assert lossless.num_compared == 1
    (divergence,) = lossless.divergences
    assert (divergence.position, divergence.expected, divergence.found) == (1, 2, 9)
    assert lossless.is_broken


def test_an_answer_that_ends_early_differs_where_the_other_goes_on() -> None:
    lossless = compare_answers([make_answer("p", (1, 2))], EXPECTED)
    assert lossless is not None
    assert lossless.divergences[0].position == 2
    assert lossless.divergences[0].found is None


def test_without_token_ids_nothing_is_claimed() -> None:
    assert compare_answers([make_answer("p", ())], EXPECTED) is None


def test_the_gap_is_read_where_both_tokens_are_among_the_alternatives() -> None:
    divergence = Divergence(prompt_id="p", turn=0, position=1, expected=2, found=9)
    choice = {"logprobs": {"top_logprobs": [{"token_id:2": -0.7, "token_id:9": -0.75}]}}
    gap = read_gap(choice, divergence)
    assert gap is not None
    assert abs(gap - 0.05) < 1e-9
    assert read_gap({"logprobs": None}, divergence) is None
    assert read_gap(choice, divergence.model_copy(update={"found": 7})) is None
