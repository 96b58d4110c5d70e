import json
from pathlib import Path

import pytest
from fakes.words_template import build_template

from eval.errors import SpecError
from harness.corpus.conversations import Conversation
from harness.corpus.dialogues import Unusable, read_dialogues


def read(path: Path, *rows: object, limit: int | None = None) -> list[Conversation | Unusable]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_dialogues(path, build_template(), limit))


def test_every_layout_gives_the_same_tokens(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    shared = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]
    found = read(
        tmp_path / "x.jsonl",
        {"id": "a", "messages": messages},
        {"id": "b", "conversations": shared},
        {"id": "c", "prompt": "hi", "response": "yo"},
        {"id": "d", "turns": ["hi"], "answer": ["yo"]},
        {"id": "e", "messages": [*messages, {"role": "user", "content": "and?"}]},
    )
    turns = [one.turns for one in found if isinstance(one, Conversation)]
    assert len(turns) == 5
    assert all(turn == turns[0] for turn in turns)
    assert (turns[0][0].question, turns[0][0].answer) == ("hi", "yo")
    assert len(turns[0][0].token_ids) == 3


def test_what_stands_beside_a_question_as_system_is_said_before_it(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    told = {"role": "system", "content": "be brief"}
    found = read(
        tmp_path / "x.jsonl",
        {"id": "a", "prompt": "hi", "response": "yo", "system": "be brief"},
        {"id": "b", "messages": asked, "system": "be brief"},
        {"id": "c", "messages": [told, *asked], "system": "be long"},
        {"id": "d", "prompt": "hi", "response": "yo", "system": " "},
    )
    said = [one for one in found if isinstance(one, Conversation)]
    assert [one.system for one in said] == ["be brief", "be brief", "be brief", None]
    lengths = [len(one.turns[0].prompt_token_ids) for one in said]
    assert lengths[0] == lengths[1] == lengths[2] > lengths[3]


def test_a_cut_off_answer_has_no_end(tmp_path: Path) -> None:
    (one,) = read(
        tmp_path / "x.jsonl",
        {"id": "a", "prompt": "hi", "response": "yo", "finish_reason": "length"},
    )
    assert isinstance(one, Conversation)
    assert one.turns[0].is_truncated
    assert len(one.turns[0].token_ids) == 2


def test_the_first_by_id_are_taken(tmp_path: Path) -> None:
    rows = [{"id": key, "prompt": "hi", "response": key} for key in ("b", "c", "a", "d")]
    found = read(tmp_path / "x.jsonl", *rows, limit=3)
    assert [one.id for one in found] == ["a", "b", "c"]
    assert [one.turns[0].answer for one in found if isinstance(one, Conversation)] == list("abc")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "hi"}, "no_turns"),
        ({"prompt": "hi", "response": " "}, "empty_turn"),
        ({"prompt": 5, "response": "yo"}, "no_text"),
        ({"prompt": "hi", "response": {"text": "yo"}}, "no_text"),
        ({"prompt": ["hi"], "response": []}, "wrong_order"),
        ({"turns": ["hi", "ho"], "answer": ["yo"]}, "wrong_order"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "no_answer"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "wrong_role"),
    ],
)
def test_what_gives_no_row_has_a_reason(tmp_path: Path, row: object, reason: str) -> None:
    good = {"prompt": "hi", "response": "yo"}
    first, second = read(tmp_path / "x.jsonl", row, good)
    assert isinstance(first, Unusable)
    assert first.reason == reason
    assert isinstance(second, Conversation)


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "hi", "response": "yo"}\n{"prompt": "hi", \n')
    with pytest.raises(SpecError, match=r"x\.jsonl:2: not a JSON object"):
        list(read_dialogues(path, build_template()))
