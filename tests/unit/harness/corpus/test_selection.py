from collections.abc import Iterator, Sequence

import pytest

from eval.spec import Prompt
from harness.config.prompts import FilterConfig
from harness.corpus.duplicates import NearIndex
from harness.corpus.selection import Room, Selection
from harness.corpus.sources import Candidate, Dropped


class WordCounts:
    """Counts words; a turn costs three more."""

    num_tokens_per_turn = 3

    def count_tokens(self, texts: Sequence[str]) -> Iterator[int]:
        return (len(text.split()) for text in texts)


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


def select(*turns: str | tuple[str, ...]) -> Selection:
    selection = Selection(silent)
    asked = [(turn,) if isinstance(turn, str) else turn for turn in turns]
    selection.take(Candidate(f"s/{i}", "s", "c", turn, ()) for i, turn in enumerate(asked))
    return selection


def outcome(selection: Selection) -> tuple[list[str], list[tuple[str, str]]]:
    kept = [candidate.id for candidate in selection.kept]
    return kept, [(one.id, one.reason) for one in selection.dropped]


def test_of_one_id_the_first_stays() -> None:
    selection = Selection(silent)
    selection.take([Candidate("s/1", "s", "c", (text,), ()) for text in ("a", "a")])
    selection.take([Dropped(id="s/2", reason="empty_turn", detail="")])
    selection.drop_repeated_ids()
    assert outcome(selection) == (["s/1"], [("s/2", "empty_turn"), ("s/1", "same_id")])


def test_other_languages_go_when_it_is_sure() -> None:
    selection = select(
        "What is the capital of France and how many people live there?",
        "Quelle est la capitale de la France et combien de personnes y vivent ?",
        "Hi!",
    )
    selection.drop_languages(FilterConfig(languages=("en",)))
    assert outcome(selection) == (["s/0", "s/2"], [("s/1", "language")])
    assert selection.dropped[0].detail.startswith("fr with probability")


def test_lengths_are_of_all_questions_and_leave_room_for_answers() -> None:
    selection = select("one", "one two three", "a " * 30, ("a b", "c d"), ("a b c", "d e f"))
    filters = FilterConfig(min_tokens=2, max_tokens=20)
    selection.drop_lengths(filters, WordCounts(), Room(20, 5))
    kept, dropped = outcome(selection)
    # Two turns of two words: 4 + 2 x (3 + 5) = 20.
    assert kept == ["s/1", "s/3"]
    assert dropped == [("s/0", "too_short"), ("s/2", "too_long"), ("s/4", "context")]
    assert "need 22, the context has 20" in selection.dropped[-1].detail


EVALUATION = [
    Prompt(id="e1", category="c", turns=("Name the capital of France.",)),
    Prompt(
        id="e2",
        category="c",
        turns=("A train leaves at noon and travels for three hours at sixty miles per hour",),
    ),
]


@pytest.mark.parametrize(
    "question",
    [
        "name the CAPITAL of france",
        "The train leaves at noon and travels for three hours at sixty miles per hour",
        "Tom says: a train leaves at noon and travels for three hours at sixty miles, and then "
        "turns around to come back over the same hill. When is it home?",
    ],
)
def test_what_an_evaluation_asks_is_found(question: str) -> None:
    selection = select("Name the highest mountain of Asia.", ("hello there", question))
    overlap = selection.drop_overlap(EVALUATION, FilterConfig())
    assert [one.id for one in overlap] == ["s/1"]
    assert overlap == selection.dropped
    assert [candidate.id for candidate in selection.kept] == ["s/0"]


def test_the_first_of_equal_and_near_prompts_stays() -> None:
    question = (
        "Write a short story about a lighthouse keeper who finds a message in a bottle one day "
        "and does not know who sent it."
    )
    selection = select(
        question,
        question.upper(),
        question.replace("short", "shorter"),
        question.replace("bottle", "box"),
        "Write a poem about autumn.",
    )
    selection.drop_duplicates(0.8)
    kept, dropped = outcome(selection)
    assert kept == ["s/0", "s/4"]
    assert dropped == [("s/1", "duplicate"), ("s/2", "near_duplicate"), ("s/3", "near_duplicate")]
    assert {one.detail for one in selection.dropped} == {"s/0"}


def test_without_a_threshold_only_equal_prompts_go() -> None:
    selection = select("Write a story about a dog.", "Write a story about a dog!", "Write a story.")
    selection.drop_duplicates(None)
    assert [candidate.id for candidate in selection.kept] == ["s/0", "s/2"]


def test_no_pair_below_the_threshold_is_near() -> None:
    index = NearIndex(0.5)
    index.add("a", "abcdefghij")
    # Pieces abcde to fghij; "abcdefgh" has 4 of those 6: 0.67, "abcdef" 2 of 6: 0.33.
    assert index.find("abcdefgh") == "a"
    assert index.find("abcdef") is None
