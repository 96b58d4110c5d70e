"""Conversations as text, of any JSONL layout, to the tokens that the verifier would have seen.

For answers that were kept without token ids. Text that is tokenised again can differ from what the
verifier generated: conversations of `harness data regenerate` keep the ids themselves.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eval.prompts import read_objects
from harness.config.load import Frozen
from harness.corpus.conversations import Conversation, Turn
from harness.corpus.messages import Message, NoConversationError, read_messages
from harness.corpus.template import ChatTemplate, RenderedTurn

_MESSAGE_COLUMNS = ("messages", "conversations")
_QUESTION_COLUMNS = ("turns", "prompt", "question", "instruction")
_ANSWER_COLUMNS = ("response", "answer", "completion", "output")
_BATCH_ROWS = 256


class Unusable(Frozen):
    """A conversation that gives no row, and why."""

    id: str
    reason: str
    detail: str


class _Dialogue(NamedTuple):
    id: str
    category: str
    messages: list[Message]
    finish_reason: str
    rendered: list[RenderedTurn]


def read_dialogues(
    path: Path, template: ChatTemplate, limit: int | None = None
) -> Iterator[Conversation | Unusable]:
    """The conversations of a JSONL file, tokenised, in the order of their ids.

    A row is `messages` (or `conversations`), or a question (`prompt`, `turns`) with its answer
    (`response`, `answer`); `system` is said before either. `finish_reason: length` marks a last
    answer that was cut off.

    Args:
        path: JSONL, or JSONL.gz.
        template: The verifier's.
        limit: Rows at most, the first by id.

    Raises:
        SpecError: The file is missing, or a line is no JSON object; file and line are named.
    """
    rows = [(str(row.get("id", number)), row) for number, row in read_objects(path)]
    rows.sort(key=lambda pair: pair[0])
    chosen = rows[:limit]
    for start in range(0, len(chosen), _BATCH_ROWS):
        batch = chosen[start : start + _BATCH_ROWS]
        yield from _tokenise([_read(key, row, template) for key, row in batch], template)


def _tokenise(
    batch: Iterable[_Dialogue | Unusable], template: ChatTemplate
) -> Iterator[Conversation | Unusable]:
    found = list(batch)
    rendered = [turn for one in found if isinstance(one, _Dialogue) for turn in one.rendered]
    answered = iter(template.tokenise(rendered))
    for one in found:
        if isinstance(one, Unusable):
            yield one
            continue
        questions = [said.content for said in one.messages if said.role == "user"]
        answers = [said for said in one.messages if said.role == "assistant"]
        turns = []
        for question, said in zip(questions, answers, strict=False):
            tokens = next(answered)
            is_last = said is answers[-1]
            turns.append(
                Turn(
                    question=question,
                    answer=said.content,
                    reasoning=said.reasoning or None,
                    prompt_token_ids=tuple(tokens.prompt_token_ids),
                    token_ids=tuple(tokens.token_ids),
                    finish_reason=one.finish_reason if is_last else "stop",
                )
            )
        first = one.messages[0]
        system = first.content if first.role == "system" else None
        yield Conversation(id=one.id, category=one.category, system=system, turns=tuple(turns))


def _read(key: str, row: dict[str, Any], template: ChatTemplate) -> _Dialogue | Unusable:
    finish_reason = str(row.get("finish_reason") or "stop")
    try:
        messages = _find_messages(row)
        rendered = template.split(messages, is_cut=finish_reason == "length")
    except NoConversationError as error:
        return Unusable(id=key, reason=error.reason, detail=str(error))
    if not rendered:
        return Unusable(id=key, reason="no_answer", detail="nothing in it was answered")
    category = str(row.get("category") or "all")
    return _Dialogue(key, category, messages, finish_reason, rendered)


def _find_messages(row: dict[str, Any]) -> list[Message]:
    messages = _find_turns(row)
    told = row.get("system")
    is_told = isinstance(told, str) and bool(told.strip()) and messages[0].role != "system"
    return [Message("system", str(told)), *messages] if is_told else messages


def _find_turns(row: dict[str, Any]) -> list[Message]:
    column = next((name for name in _MESSAGE_COLUMNS if row.get(name) is not None), None)
    if column:
        return read_messages(row[column])
    asked = next((row[name] for name in _QUESTION_COLUMNS if row.get(name) is not None), None)
    said = next((row[name] for name in _ANSWER_COLUMNS if row.get(name) is not None), None)
    if asked is None or said is None:
        expected = f"expected messages, or prompt and response, found {', '.join(row)}"
        raise NoConversationError("no_turns", expected)
    questions = asked if isinstance(asked, list) else [asked]
    answers = said if isinstance(said, list) else [said]
    if len(questions) != len(answers):
        raise NoConversationError(
            "wrong_order", f"{len(questions)} questions have {len(answers)} answers"
        )
    pairs = zip(questions, answers, strict=True)
    return read_messages(
        [
            {"role": role, "content": text}
            for pair in pairs
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
    )
