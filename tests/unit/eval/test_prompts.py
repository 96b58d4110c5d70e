import gzip
from pathlib import Path

import pytest

from eval.errors import SpecError
from eval.prompts import digest_prompts, load_prompts, pick_prompts

GOOD = '{"id": "a", "category": "chat", "prompt": "hi"}\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_prompts_and_turns_are_read_in_order(tmp_path: Path) -> None:
    text = GOOD + '\n{"id": "b", "category": "qa", "turns": ["one", "two"]}\n'
    first, second = load_prompts(write(tmp_path, text))
    assert first.turns == ("hi",)
    assert second.turns == ("one", "two")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "found none"),
        ("nonsense\n", ":1: not a JSON object"),
        ("[1]\n", ":1: expected a JSON object"),
        (GOOD + GOOD, ":2: id 'a' was already used in line 1"),
        ('{"id": "a", "category": "c"}\n', "found neither"),
        ('{"id": "a", "category": "c", "prompt": "x", "turns": ["y"]}\n', "not the first"),
        ('{"id": "a", "category": "c", "prompt": ""}\n', ":1: expected a question"),
        ('{"id": "a", "category": "c", "prompt": "x", "answer": 1}\n', ":1: answer"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_prompts(write(tmp_path, text))
    assert complaint in caught.value.message


def test_annotations_are_no_part_of_the_question_and_gzip_is_unpacked(tmp_path: Path) -> None:
    line = GOOD.replace('"prompt"', '"source": "s", "subset": "t", "turns": ["hi"], "prompt"')
    packed = tmp_path / "prompts.jsonl.gz"
    packed.write_bytes(gzip.compress(line.encode()))
    assert load_prompts(packed) == load_prompts(write(tmp_path, GOOD))
    packed.write_text("plain")
    with pytest.raises(SpecError, match="not a gzip file"):
        load_prompts(packed)


def test_a_seeded_subset_is_the_same_each_time_and_another_than_without(tmp_path: Path) -> None:
    lines = [f'{{"id": "{i}", "category": "c", "prompt": "x"}}' for i in range(30)]
    prompts = load_prompts(write(tmp_path, "\n".join(lines)))
    assert pick_prompts(prompts, 9, seed=1) == pick_prompts(prompts, 9, seed=1)
    assert pick_prompts(prompts, 9, seed=1) != pick_prompts(prompts, 9)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="found none"):
        load_prompts(tmp_path / "none.jsonl")


def test_the_digest_follows_the_content_not_the_spelling(tmp_path: Path) -> None:
    one = load_prompts(write(tmp_path, GOOD))
    spaced = load_prompts(write(tmp_path, '{"prompt":"hi",  "id":"a","category":"chat"}\n\n'))
    other = load_prompts(write(tmp_path, GOOD.replace("hi", "ho")))
    assert digest_prompts(one) == digest_prompts(spaced) != digest_prompts(other)


def test_a_subset_holds_every_category(tmp_path: Path) -> None:
    lines = [
        f'{{"id": "{c}{i}", "category": "{c}", "prompt": "x"}}' for c in "abc" for i in range(4)
    ]
    picked = pick_prompts(load_prompts(write(tmp_path, "\n".join(lines))), 4)
    assert [prompt.id for prompt in picked] == ["a0", "b0", "c0", "a1"]
