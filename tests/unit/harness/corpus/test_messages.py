import pytest

from harness.corpus.messages import Message, NoConversationError, read_messages


def test_texts_are_questions_and_messages_keep_their_roles() -> None:
    assert read_messages("why?") == [Message("user", "why?")]
    assert read_messages(["a", "b"]) == [Message("user", "a"), Message("user", "b")]
    shared = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]
    assert read_messages(shared) == [Message("user", "hi"), Message("assistant", "yo")]


def test_reasoning_is_kept_apart_and_given_to_the_template() -> None:
    said = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}
    messages = read_messages([{"role": "user", "content": "2 + 2?"}, said])
    assert messages[1].reasoning == "2 and 2"
    assert messages[1].document()["reasoning_content"] == "2 and 2"
    assert "reasoning_content" not in messages[0].document()


USER = {"role": "user", "content": "hi"}
BOT = {"role": "assistant", "content": "yo"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "no_turns"),
        (None, "no_turns"),
        (7, "no_turns"),
        ("  ", "empty_turn"),
        ([USER, {"role": "assistant", "content": " "}], "empty_turn"),
        ([{"role": "user", "content": None}], "no_text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "no_text"),
        ([{"role": "tool", "content": "42"}], "wrong_role"),
        ([{"content": "42"}], "wrong_role"),
        ([USER, BOT | {"tool_calls": [{"name": "f"}]}], "wrong_role"),
        ([BOT, USER], "wrong_order"),
        ([USER, USER], "wrong_order"),
        ([USER, BOT, BOT], "wrong_order"),
        ([{"role": "system", "content": "be brief"}], "wrong_order"),
        ([USER, "yo"], "no_turns"),
    ],
)
def test_what_is_no_conversation_has_a_reason(value: object, reason: str) -> None:
    with pytest.raises(NoConversationError) as caught:
        read_messages(value)
    assert caught.value.reason == reason


def test_columns_of_other_rows_are_none_in_these() -> None:
    """As `datasets` gives rows of one set in several layouts."""
    mixed = [
        {"role": None, "content": None, "from": "system", "value": " ", "tool_calls": None},
        {"role": "user", "content": "hi", "from": None, "value": None},
        {"role": None, "content": None, "from": "gpt", "value": "yo"},
    ]
    assert [(said.role, said.content) for said in read_messages(mixed)] == [
        ("user", "hi"),
        ("assistant", "yo"),
    ]


def test_a_system_message_may_come_first() -> None:
    messages = read_messages([{"role": "system", "content": "be brief"}, USER, BOT])
    assert [message.role for message in messages] == ["system", "user", "assistant"]
