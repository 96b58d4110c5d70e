"""A stage's folder as a person looks into it: its state, and some of it as text."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.prompts import read_objects
from harness.config.load import Frozen
from harness.corpus.conversations import CONVERSATIONS_NAME, Conversation
from harness.corpus.hidden_states import TOKENS_DIR
from harness.corpus.journal import Journal
from harness.corpus.manifest import (
    JOURNAL_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    Plan,
    load_any_manifest,
    read_plan,
)
from harness.corpus.promptset import PROMPTS_NAME
from harness.corpus.rowfiles import read_rows
from harness.corpus.trainrows import KeptRow
from harness.errors import ConfigError

Decode = Callable[[list[int]], str]


class Piece(Frozen):
    """A stretch of a sample."""

    text: str
    has_loss: bool


class Sample(Frozen):
    """One prompt, conversation or row."""

    id: str
    category: str
    num_tokens: int | None
    num_loss_tokens: int | None
    pieces: tuple[Piece, ...]


class Look(Frozen):
    """What a folder holds."""

    stage: str
    is_finished: bool
    plan: Plan
    facts: dict[str, int | float | str]
    """Counts of a finished stage; what the journal says of one under way."""


class Inspection(Frozen):
    """Both, as one document."""

    look: Look
    samples: tuple[Sample, ...]


class Choice(NamedTuple):
    """Which samples are wanted."""

    first: int
    number: int
    id: str | None


def look_into(folder: Path) -> Look:
    """The state of a stage's folder, finished or under way.

    Raises:
        ConfigError: It is no stage's folder.
        CheckError: Its manifest was changed.
    """
    found = read_plan(folder)
    if found is None:
        raise ConfigError(
            f"expected a folder of harness data, found no {PLAN_NAME} in {folder}", "check the path"
        )
    if (folder / MANIFEST_NAME).is_file():
        manifest = load_any_manifest(folder)
        plan = Plan.model_validate(manifest.model_dump(include=set(Plan.model_fields)))
        return Look(stage=plan.stage, is_finished=True, plan=plan, facts={**manifest.counts})
    return Look(stage=found.stage, is_finished=False, plan=found, facts=_progress(folder))


def read_samples(folder: Path, stage: str, choice: Choice, decode: Decode | None) -> list[Sample]:
    """Some of what a finished stage made.

    Args:
        folder: The stage's.
        stage: Its name.
        choice: Which.
        decode: Tokens to text; needed for rows.

    Raises:
        ConfigError: There is no sample of that id, or fewer than `first`.
    """
    if stage == "prompts":
        found = _pick(_prompts(folder), choice)
    elif stage == "regenerate":
        found = _pick(_conversations(folder), choice)
    elif stage == "vocab" or decode is None:
        return []
    else:
        place = folder / TOKENS_DIR if stage == "extract" else folder
        rows = _choose(read_rows(place), choice, lambda row: row.id)
        found = [_row_sample(row, decode) for row in rows]
    if not found:
        wanted = f"id {choice.id!r}" if choice.id else f"number {choice.first}"
        raise ConfigError(f"{folder}: expected a sample of {wanted}, found none")
    return found


def _pick(samples: Iterable[Sample], choice: Choice) -> list[Sample]:
    return list(_choose(samples, choice, lambda sample: sample.id))


def _choose(items: Iterable[Any], choice: Choice, key: Callable[[Any], str]) -> Iterator[Any]:
    if choice.id is not None:
        return (item for item in items if key(item) == choice.id)
    return itertools.islice(items, choice.first, choice.first + choice.number)


def _prompts(folder: Path) -> Iterator[Sample]:
    for _, row in read_objects(folder / PROMPTS_NAME):
        turns = row.get("turns") or [row["prompt"]]
        asked = [*_told(row.get("system")), *((turn, False) for turn in turns)]
        yield _text_sample(row["id"], row["category"], asked)


def _conversations(folder: Path) -> Iterator[Sample]:
    with (folder / CONVERSATIONS_NAME).open("rb") as stream:
        for line in stream:
            said = Conversation.model_validate_json(line)
            pieces = _told(said.system)
            for turn in said.turns:
                thought = [(f"({turn.reasoning})", True)] if turn.reasoning else []
                cut = " ... (cut off)" if turn.is_truncated else ""
                pieces += [(turn.question, False), *thought, (turn.answer + cut, True)]
            sample = _text_sample(said.id, said.category, pieces)
            num_loss = sum(len(turn.token_ids) for turn in said.turns)
            yield sample.model_copy(update={"num_loss_tokens": num_loss})


def _told(system: str | None) -> list[tuple[str, bool]]:
    return [(f"[{system}]", False)] if system else []


def _text_sample(identity: str, category: str, pieces: Iterable[tuple[str, bool]]) -> Sample:
    return Sample(
        id=identity,
        category=category,
        num_tokens=None,
        num_loss_tokens=None,
        pieces=tuple(Piece(text=f"{text}\n", has_loss=has_loss) for text, has_loss in pieces),
    )


def _row_sample(row: KeptRow, decode: Decode) -> Sample:
    """Neighbours of one mask are decoded together: a letter may be spread over several tokens."""
    cuts = np.flatnonzero(np.diff(row.loss_mask)) + 1
    pieces = tuple(
        Piece(text=decode(ids.tolist()), has_loss=bool(mask[0]))
        for ids, mask in zip(
            np.split(row.input_ids, cuts), np.split(row.loss_mask, cuts), strict=True
        )
    )
    return Sample(
        id=row.id,
        category=row.category,
        num_tokens=len(row.input_ids),
        num_loss_tokens=int(row.loss_mask.sum()),
        pieces=pieces,
    )


def _progress(folder: Path) -> dict[str, int | float | str]:
    """What the journal of an unfinished stage holds."""
    documents = Journal(folder / JOURNAL_NAME).read()
    answered = [
        Conversation.model_validate(one["answered"]) for one in documents if "answered" in one
    ]
    facts: dict[str, int | float | str] = {}
    if rows := {one["row"] for one in documents if "file" in one}:
        facts["finished_rows"] = len(rows)
    if answered:
        turns = [turn for one in answered for turn in one.turns]
        facts |= {
            "answered": len(answered),
            "refused": sum("refused" in one for one in documents),
            "answer_tokens": sum(len(turn.token_ids) for turn in turns),
            "truncated_answers": sum(turn.is_truncated for turn in turns),
        }
    return facts
