from pathlib import Path

import pytest

from eval.errors import SpecError
from eval.prompts import load_prompts
from eval.spec import Prompt
from harness.corpus.prompts import find_overlap, normalise, require_disjoint
from harness.errors import ConfigError

ROOT = Path(__file__).parents[4]


def prompt(key: str, *turns: str) -> Prompt:
    return Prompt(id=key, category="chat", turns=turns)


@pytest.mark.parametrize(
    "other",
    [
        "why is the sky blue",
        "  Why is the SKY blue?\n",
        "Why, is the sky - blue!",
        "Why is the sky\u00a0blue?",
    ],
)
def test_overlap_ignores_case_spacing_punctuation_and_unicode_form(other: str) -> None:
    found = find_overlap([prompt("t1", "Why is the sky blue?")], [prompt("e1", other)])
    assert [(o.training_id, o.evaluation_id) for o in found] == [("t1", "e1")]


def test_different_questions_do_not_overlap() -> None:
    assert not find_overlap([prompt("t", "What is 2 + 2?")], [prompt("e", "What is 2 + 3?")])


def test_a_later_turn_counts_as_a_question() -> None:
    found = find_overlap([prompt("t", "Hello", "And why?")], [prompt("e", "Hi", "and WHY")])
    assert [o.question for o in found] == ["And why?"]


def test_questions_without_words_keep_their_signs() -> None:
    assert normalise("+++") != normalise("---")


def test_shared_prompts_are_refused_with_both_ids(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text('{"id": "e7", "category": "qa", "prompt": "Why?"}\n')
    with pytest.raises(ConfigError, match=r"t3 = e7: why"):
        require_disjoint([prompt("t3", "why")], str(path))
    require_disjoint([prompt("t3", "how")], str(path))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected prompts in .*, found none"),
        ('{"id": "a", "category": "c", "prompt": "x"}\n{oops\n', ":2: not a JSON object"),
        ('{"id": "a", "category": "c"}\n', ':1: expected .*"prompt" or "turns"'),
        ('{"category": "c", "prompt": "x"}\n', ":1: id"),
        ('{"id": "a", "category": "c", "prompt": "  "}\n', ":1: .*empty prompt"),
        ('{"id": "a", "category": "c", "turns": []}\n', ":1: turns"),
        (
            '{"id": "a", "category": "c", "prompt": "x"}\n\n' * 2,
            ":3: id 'a' was already used in line 1",
        ),
    ],
)
def test_a_bad_prompts_file_is_refused_by_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError, match=complaint):
        load_prompts(path)


def test_a_line_separator_inside_a_prompt_is_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "category": "c", "prompt": "one\u2028two"}\n', encoding="utf-8")
    assert load_prompts(path)[0].turns == ("one\u2028two",)


def test_our_own_prompts_are_enough_and_disjoint() -> None:
    folder = ROOT / "experiments" / "smollm2-135m" / "prompts"
    training, evaluation = (load_prompts(folder / f"{n}.jsonl") for n in ("train", "eval"))
    assert len(training) >= 240
    assert len(evaluation) >= 96
    assert {p.category for p in training} == {p.category for p in evaluation}
    assert not find_overlap(training, evaluation)
