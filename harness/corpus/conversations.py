"""Conversations on disk: what was asked and answered, as text and as exact token ids."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from harness.config.load import Frozen
from harness.corpus.manifest import Manifest, check_files, load_manifest
from harness.errors import CheckError

CONVERSATIONS_NAME = "conversations.jsonl"


class Turn(Frozen):
    """A question and the answer to it, as text and as the token ids the server used."""

    question: str
    answer: str
    reasoning: str | None = None
    """What was thought before it, where the server keeps that apart; its tokens stand below."""
    prompt_token_ids: tuple[int, ...] = Field(min_length=1)
    """All that came before the answer, earlier turns and generation prompt included."""
    token_ids: tuple[int, ...] = Field(min_length=1)
    """The answer, its end-of-turn token included unless it was cut off."""
    finish_reason: str

    @property
    def is_truncated(self) -> bool:
        """Whether the answer was cut off by the limit of new tokens."""
        return self.finish_reason == "length"


class Conversation(Frozen):
    """One prompt with all its turns answered."""

    id: str
    category: str
    system: str | None = None
    """What the verifier was told before the first turn; its tokens are among the prompt's."""
    turns: tuple[Turn, ...] = Field(min_length=1)


def load_conversations(folder: Path) -> tuple[Manifest, Iterator[Conversation]]:
    """The conversations of a finished regeneration, checked byte by byte, in prompt order.

    Raises:
        ConfigError: No finished regeneration there.
        CheckError: A file was changed, or a line is no conversation.
    """
    manifest = load_manifest(folder, "regenerate")
    check_files(folder, manifest, deep=True)
    return manifest, _read_conversations(folder / CONVERSATIONS_NAME)


def _read_conversations(path: Path) -> Iterator[Conversation]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield Conversation.model_validate_json(line)
            except ValidationError as error:
                problem = error.errors()[0]
                where = f"{path}:{number}: {'.'.join(str(part) for part in problem['loc'])}"
                raise CheckError(f"{where}: {problem['msg']}") from error
