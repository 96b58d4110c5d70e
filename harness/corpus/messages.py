"""Who said what, in the layouts that data sets have, and whether it is a conversation at all."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Role = Literal["system", "user", "assistant"]
_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}
_NAME_KEYS, _TEXT_KEYS = ("role", "from"), ("content", "value")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


class Message(NamedTuple):
    """One thing said; `reasoning` is what was thought before it, where that is kept apart."""

    role: Role
    content: str
    reasoning: str = ""

    def document(self) -> dict[str, str]:
        """As chat templates take it; reasoning under both names that templates read."""
        said = {"role": self.role, "content": self.content}
        if self.reasoning:
            said |= {"reasoning_content": self.reasoning, "reasoning": self.reasoning}
        return said


class NoConversationError(ValueError):
    """A row that holds no conversation; `reason` is one word to count by."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_messages(value: Any) -> list[Message]:
    """A text, a list of questions, or messages as {role, content} or {from, value}.

    An empty system message is none.

    Raises:
        NoConversationError: Something else, an empty turn, an unknown role, or an order other than
            user and assistant in turn after at most one system message.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence) or not value:
        raise NoConversationError("no_turns", f"expected turns, found {str(value)[:60]!r}")
    if all(isinstance(turn, str) for turn in value):
        messages = [_build("user", turn) for turn in value]
    else:
        messages = [_read_one(turn) for turn in _without_empty_system(value)]
        _require_order(messages)
    return messages


def _without_empty_system(turns: Sequence[Any]) -> Sequence[Any]:
    first = turns[0]
    if not isinstance(first, Mapping) or _first(first, _NAME_KEYS) != "system":
        return turns
    said = _first(first, _TEXT_KEYS)
    is_empty = said is None or (isinstance(said, str) and not said.strip())
    return turns[1:] if is_empty else turns


def _read_one(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        raise NoConversationError("no_turns", f"expected a message, found {str(turn)[:60]!r}")
    name = _first(turn, _NAME_KEYS)
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        known = ", ".join(_ROLES)
        raise NoConversationError("wrong_role", f"expected a role of {known}, found {name!r}")
    if turn.get("tool_calls"):
        raise NoConversationError("wrong_role", "expected no tool calls, found some")
    reasoning = next((turn[key] for key in _REASONING_KEYS if turn.get(key)), "")
    return _build(role, _first(turn, _TEXT_KEYS), str(reasoning))


def _first(turn: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The first of the keys that holds something: a set read as columns has None in the others."""
    return next((turn[key] for key in keys if turn.get(key) is not None), None)


def _build(role: Role, content: Any, reasoning: str = "") -> Message:
    if not isinstance(content, str):
        found = type(content).__name__
        raise NoConversationError("no_text", f"expected the text of the {role}, found {found}")
    if not content.strip() and not (role == "assistant" and reasoning):
        raise NoConversationError("empty_turn", f"expected the text of the {role}, found none")
    return Message(role, content, reasoning)


def _require_order(messages: Sequence[Message]) -> None:
    roles = [message.role for message in messages]
    said = roles[1:] if roles[:1] == ["system"] else roles
    expected = ["user", "assistant"] * len(said)
    if not said or said != expected[: len(said)]:
        found = ", ".join(roles[:8])
        raise NoConversationError("wrong_order", f"expected user and assistant in turn: {found}")
