"""Prompt files: strict JSONL to typed prompts, and the digest of what is asked.

A line is `{"id", "category", "prompt"}` or `{"id", "category", "turns": [...]}`; where both stand,
the prompt is the first turn. `system` is said before it; `source`, `subset` and `canary` may be
there and are not asked.
A name that ends in `.gz` is unpacked.
"""

import gzip
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from eval.digests import digest_json
from eval.errors import SpecError
from eval.spec import Prompt

_ANNOTATIONS = ("source", "subset", "canary")
_FORMAT = 'each line: {"id": "q1", "category": "chat", "prompt": "..."} or "turns": ["...", "..."]'


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """Reads a JSONL prompt file; order is kept, blank lines are skipped.

    Raises:
        SpecError: The file is missing, empty, not UTF-8, has a malformed line, an unknown key or
            the same id twice; file and line are named.
    """
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    for number, document in read_objects(path, _FORMAT):
        prompt = _parse(document, f"{path}:{number}")
        if prompt.id in seen:
            raise SpecError(
                f"{path}:{number}: id {prompt.id!r} was already used in line {seen[prompt.id]}",
                "give every prompt an id of its own",
            )
        seen[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise SpecError(f"expected prompts in {path}, found none", _FORMAT)
    return tuple(prompts)


def digest_prompts(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over ids, categories and turns in their order: equal digests, equal questions."""
    return digest_json([prompt.model_dump(mode="json") for prompt in prompts])


class HasCategory(Protocol):
    """A prompt, or an answer to one."""

    @property
    def category(self) -> str:
        """The kind of question."""


Categorised = TypeVar("Categorised", bound=HasCategory)


def pick_prompts(
    prompts: Sequence[Categorised], limit: int, seed: int | None = None
) -> tuple[Categorised, ...]:
    """The first `limit` prompts, taken round by round over the categories.

    Args:
        prompts: To choose from.
        limit: How many.
        seed: Shuffles first, the same way each time; None keeps the order of the file.
    """
    by_category: dict[str, list[Categorised]] = {}
    ordered = list(prompts)
    if seed is not None:
        random.Random(seed).shuffle(ordered)  # noqa: S311 - no secret is made
    for prompt in ordered:
        by_category.setdefault(prompt.category, []).append(prompt)
    rounds = max((len(group) for group in by_category.values()), default=0)
    mixed = [
        group[index]
        for index in range(rounds)
        for group in by_category.values()
        if index < len(group)
    ]
    return tuple(mixed[:limit])


def read_objects(path: Path, hint: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a JSONL file with their line numbers; blank lines are skipped.

    Raises:
        SpecError: The file is missing or not UTF-8, or a line is no object; `hint` says what one
            should be.
    """
    for number, line in enumerate(_read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            document: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise SpecError(f"{path}:{number}: not a JSON object: {error}", hint) from error
        if not isinstance(document, dict):
            raise SpecError(f"{path}:{number}: expected a JSON object, found {line[:60]!r}", hint)
        yield number, document


def first_problem(error: ValidationError) -> str:
    """Which key of a prompt is wrong, why, and what was found there."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    return f"{key}: {problem['msg']}, found {str(problem['input'])[:60]!r}"


def _read_lines(path: Path) -> list[str]:
    if not path.is_file():
        raise SpecError(f"expected a prompts file, found none: {path}", "check the path")
    try:
        # Not splitlines: it would also break a prompt at a line separator inside its text.
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        return text.decode("utf-8").split("\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SpecError(f"{path} is not a gzip file: {error}", "pack it again") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text: {error}", "save it as UTF-8") from error


def _parse(document: dict[str, Any], where: str) -> Prompt:
    for key in _ANNOTATIONS:
        document.pop(key, None)
    first = [document.pop("prompt")] if "prompt" in document else None
    if first is None and "turns" not in document:
        raise SpecError(f'{where}: expected "prompt" or "turns", found neither', _FORMAT)
    document.setdefault("turns", first)
    if first is not None and _turns(document)[:1] != first:
        raise SpecError(f'{where}: "prompt" is not the first of "turns"', _FORMAT)
    if any(isinstance(turn, str) and not turn.strip() for turn in _turns(document)):
        raise SpecError(f"{where}: expected a question, found an empty prompt", _FORMAT)
    try:
        return Prompt.model_validate(document)
    except ValidationError as error:
        raise SpecError(f"{where}: {first_problem(error)}", _FORMAT) from error


def _turns(document: dict[str, Any]) -> list[Any]:
    turns = document["turns"]
    return turns if isinstance(turns, list) else []
