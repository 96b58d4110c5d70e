from pathlib import Path

import pytest

from harness.corpus.conversations import Conversation, Turn
from harness.corpus.tokens import build_rows


def conversation(*turns: tuple[tuple[int, ...], tuple[int, ...]]) -> Conversation:
    return Conversation(
        id="c",
        category="chat",
        turns=tuple(
            Turn(
                question="q",
                answer="a",
                prompt_token_ids=prompt,
                token_ids=answer,
                finish_reason="stop",
            )
            for prompt, answer in turns
        ),
    )


def test_loss_is_on_the_answer_alone() -> None:
    (row,) = build_rows(conversation(((1, 2, 3), (4, 5))))
    assert row.input_ids == [1, 2, 3, 4, 5]
    assert row.loss_mask == [0, 0, 0, 1, 1]


def test_turns_whose_prompts_go_on_share_a_row() -> None:
    (row,) = build_rows(conversation(((1, 2), (3, 9)), ((1, 2, 3, 9, 7), (8, 9))))
    assert row.input_ids == [1, 2, 3, 9, 7, 8, 9]
    assert row.loss_mask == [0, 0, 1, 1, 0, 1, 1]


def test_a_template_that_rewrites_history_gives_a_row_per_turn() -> None:
    first, second = build_rows(conversation(((1, 2), (3, 9)), ((1, 2, 4, 7), (8, 9))))
    assert first.input_ids == [1, 2, 3, 9]
    assert second.input_ids == [1, 2, 4, 7, 8, 9]
    assert second.loss_mask == [0, 0, 0, 0, 1, 1]


def test_a_third_turn_may_go_on_after_a_rewritten_second() -> None:
    rows = build_rows(conversation(((1,), (2,)), ((5,), (6,)), ((5, 6, 7), (8,))))
    assert [row.input_ids for row in rows] == [[1, 2], [5, 6, 7, 8]]
    assert rows[1].loss_mask == [0, 1, 0, 1]


def test_a_line_that_is_no_conversation_is_named(tmp_path: Path) -> None:
    from harness.corpus.conversations import _read_conversations
    from harness.errors import CheckError

    path = tmp_path / "conversations.jsonl"
    path.write_text(
        conversation(((1,), (2,))).model_dump_json() + '\n{"id": "x", "category": "y"}\n'
    )
    with pytest.raises(CheckError, match=r"conversations\.jsonl:2: turns"):
        list(_read_conversations(path))
