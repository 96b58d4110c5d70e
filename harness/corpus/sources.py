"""Prompt sets of any layout to candidates, with what is no prompt listed beside them."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eval.prompts import read_objects
from eval.promptsets import load_prompt_set, read_hub_rows
from harness.config.load import Frozen
from harness.config.prompts import Columns, SourceConfig
from harness.corpus.messages import Message, NoConversationError, read_messages
from harness.errors import ConfigError

_TURN_COLUMNS = (
    *("turns", "messages", "conversations"),
    *("prompt", "question", "instruction", "text"),
)


class Candidate(NamedTuple):
    """One prompt as its source has it."""

    id: str
    source: str
    category: str
    turns: tuple[str, ...]
    answers: tuple[str, ...]
    """Whoever gave them; only their length is of use."""
    system: str | None = None
    """What is said before the first turn, where the source has it."""


class Dropped(Frozen):
    """A prompt that is not in the mixture, and why."""

    id: str
    reason: str
    detail: str


def read_source(source: SourceConfig) -> Iterator[Candidate | Dropped]:
    """Every row of a source, in its order.

    Raises:
        SpecError: It cannot be had, or a line of it is no JSON object; file and line are named.
        ConfigError: A column that was named is not there.
    """
    if _has_columns(source.source):
        rows = itertools.islice(_read_rows(source.source), source.limit)
        for index, row in enumerate(rows):
            yield _read_row(row, index, source)
        return
    for prompt in load_prompt_set(source.source)[: source.limit]:
        key, category = f"{source.label}/{prompt.id}", source.category or prompt.category
        yield Candidate(key, source.label, category, prompt.turns, (), prompt.system)


def _has_columns(reference: str) -> bool:
    """Benchmarks have layouts of their own; files and hub sets have columns."""
    is_package = reference.startswith("package:")
    return not is_package and not Path(reference).expanduser().is_dir()


def _read_rows(reference: str) -> Iterable[dict[str, Any]]:
    if reference.startswith("hf:"):
        return read_hub_rows(reference.removeprefix("hf:"), "train")
    return (row for _, row in read_objects(Path(reference).expanduser()))


def _read_row(row: dict[str, Any], index: int, source: SourceConfig) -> Candidate | Dropped:
    columns = source.columns
    _require_columns(row, columns, source)
    given = row.get(columns.id or "id")
    identity = f"{source.label}/{index if given is None else given}"
    named = columns.turns
    column = named or next((name for name in _TURN_COLUMNS if row.get(name) is not None), None)
    if column is None:
        expected = f"expected a column of {', '.join(_TURN_COLUMNS)}, found {', '.join(row)}"
        return Dropped(id=identity, reason="no_turns", detail=expected)
    try:
        messages = read_messages(row[column])
    except NoConversationError as error:
        return Dropped(id=identity, reason=error.reason, detail=str(error))
    category = source.category or row.get(columns.category or "category") or source.label
    return Candidate(
        id=identity,
        source=source.label,
        category=str(category),
        turns=tuple(message.content for message in messages if message.role == "user"),
        answers=_find_answers(row, columns, messages),
        system=_find_system(row, columns, messages),
    )


def _require_columns(row: dict[str, Any], columns: Columns, source: SourceConfig) -> None:
    missing = [name for name in columns.model_dump(exclude_none=True).values() if name not in row]
    if missing:
        raise ConfigError(
            f"{source.source}: expected the column {missing[0]!r}, found {', '.join(row)}",
            "name the columns of this set under `columns`",
        )


def _find_system(row: dict[str, Any], columns: Columns, messages: list[Message]) -> str | None:
    if columns.system is None and messages[0].role == "system":
        return messages[0].content
    said = row.get(columns.system or "system")
    return said if isinstance(said, str) and said.strip() else None


def _find_answers(
    row: dict[str, Any], columns: Columns, messages: list[Message]
) -> tuple[str, ...]:
    if columns.answer:
        value = row[columns.answer]
        said = value if isinstance(value, list | tuple) else [value]
        return tuple(str(one) for one in said if one is not None)
    return tuple(
        message.reasoning + message.content for message in messages if message.role == "assistant"
    )
