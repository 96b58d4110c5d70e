"""The files of transcripts: what a verifier said, token by token, with its hidden states.

A folder holds `plan.json` (what was asked of whom), one `row_<n>.safetensors` for each answered
turn, whole or absent, and last of all `transcripts.json`. `eval.transcripts` fills it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from eval.answers import Answer
from eval.digests import digest_json
from eval.errors import SpecError
from eval.files import write_atomic
from eval.sequences import Row, Span
from eval.spec import Frozen

INDEX_NAME = "transcripts.json"
PLAN_NAME = "plan.json"
_METADATA = "transcript"
_SHA256 = "hidden_states_sha256"
"""Key of a row's transcript in the header of its file."""
_AGAIN = "delete this file and record again: only what is missing is computed"

_Document = TypeVar("_Document", bound=BaseModel)


class Plan(Frozen):
    """All that decides what a folder holds."""

    schema_version: int = 1
    verifier_digest: str
    source: Literal["prompts", "answers"]
    """Whether the verifier is asked here, or was asked by a server."""
    source_digest: str
    """Of the prompts, or of the answers' tokens."""
    max_tokens: int | None
    """Answer tokens per turn at most; None where the answers are given."""
    num_beyond: int
    aux_layer_ids: tuple[int, ...]
    dtype: str


class Transcript(Frozen):
    """One answered turn."""

    id: str
    """Of the prompt; its turns share it."""
    category: str
    turn: int
    prompt_length: int
    """Tokens of all that came before the answer, as the chat template renders it."""
    token_ids: tuple[int, ...]
    """Prompt and answer; an end-of-text token is part of the answer."""
    beyond: tuple[int, ...]
    """What the verifier would have gone on with after the answer's end."""
    text: str

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """The tokens of the answer."""
        return self.token_ids[self.prompt_length :]


class TranscriptSet(Frozen):
    """A finished folder."""

    folder: Path
    digest: str
    """Over the plan and every token."""
    aux_layer_ids: tuple[int, ...]
    dtype: str
    hidden_size: int
    transcripts: tuple[Transcript, ...]
    answers_s: float | None = None
    """Seconds in which the verifier answered; None when all was there already."""
    states_s: float | None = None
    """Seconds in which hidden states were computed; None when all were there already."""


class Index(Frozen):
    """`transcripts.json`."""

    plan: Plan
    hidden_size: int
    transcripts: tuple[Transcript, ...]


def load_transcripts(folder: Path) -> TranscriptSet:
    """A finished folder.

    Raises:
        SpecError: It is none.
    """
    index = read_document(folder / INDEX_NAME, Index)
    plan = index.plan
    return TranscriptSet(
        folder=folder,
        digest=digest_json(index.model_dump(mode="json")),
        aux_layer_ids=plan.aux_layer_ids,
        dtype=plan.dtype,
        hidden_size=index.hidden_size,
        transcripts=index.transcripts,
    )


def read_rows(found: TranscriptSet) -> list[Row]:
    """One row for each answered turn, its hidden states read when they are needed."""
    shape = (len(found.aux_layer_ids) + 1, found.hidden_size)
    return [
        Row(
            id=transcript.id,
            category=transcript.category,
            token_ids=transcript.token_ids + transcript.beyond,
            spans=(Span(transcript.prompt_length, len(transcript.token_ids)),),
            load_states=_Loader(row_path(found.folder, number), transcript, shape),
            num_beyond=len(transcript.beyond),
        )
        for number, transcript in enumerate(found.transcripts)
    ]


def require_plan(folder: Path, plan: Plan) -> None:
    """Claims a folder for a plan.

    Raises:
        SpecError: It holds what another plan asked for.
    """
    path = folder / PLAN_NAME
    if not path.exists():
        write_atomic(path, plan.model_dump_json(indent=1))
        return
    held, asked = (p.model_dump() for p in (read_document(path, Plan), plan))
    if different := [key for key in asked if held[key] != asked[key]]:
        shown = "; ".join(f"{key}: expected {asked[key]}, found {held[key]}" for key in different)
        raise SpecError(
            f"{folder} holds transcripts of another kind: {shown}",
            "give another folder, or delete this one",
        )


def row_path(folder: Path, number: int) -> Path:
    """The file of an answered turn, by its place among all turns."""
    return folder / f"row_{number}.safetensors"


class Head(NamedTuple):
    """What a row's file says without its states being read."""

    transcript: Transcript
    shape: tuple[int, ...]


def read_whole(path: Path) -> Head | None:
    """What a row's file says, if it is there and every byte of it as it was written; else None."""
    try:
        with _open_row(path) as stream:
            head = _head_of(stream, path)
            _require_bytes(stream, path)
    except SpecError:
        return None
    return head


def write_row(path: Path, transcript: Transcript, states: torch.Tensor) -> None:
    """Writes a row and its hidden states [tokens, A + 1, D] whole or not at all."""
    kept = states.contiguous()
    tensors = {"hidden_states": kept, "token_ids": torch.tensor(transcript.token_ids)}
    metadata = {_METADATA: transcript.model_dump_json(), _SHA256: _sha256_of_states(kept)}
    write_atomic(path, save(tensors, metadata))


def read_document(path: Path, kind: type[_Document]) -> _Document:
    """A typed document.

    Raises:
        SpecError: It is not there, or not one of that kind.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SpecError(f"{path}: expected a document of transcripts: {error}", _AGAIN) from error


def digest_answers(answers: Sequence[Answer]) -> str:
    """SHA-256 over the tokens of prompts and answers.

    Raises:
        SpecError: The server sent none.
    """
    for answer in answers:
        if not (answer.prompt_token_ids and answer.token_ids):
            raise SpecError(
                f"{answer.prompt_id} turn {answer.turn}: expected the token ids of prompt and "
                f"answer, found {len(answer.prompt_token_ids)} and {len(answer.token_ids)}",
                "the server must honour return_token_ids; measure again with this version",
            )
    return digest_json([(a.prompt_id, a.turn, a.prompt_token_ids, a.token_ids) for a in answers])


class _Loader:
    """Reads one row's hidden states and proves that they are of its tokens."""

    def __init__(self, path: Path, transcript: Transcript, shape: tuple[int, int]) -> None:
        self._path = path
        self._transcript = transcript
        self._shape = (len(transcript.token_ids), *shape)

    def __call__(self) -> torch.Tensor:
        with _open_row(self._path) as stream:
            found, shape = _head_of(stream, self._path)
            if found.token_ids != self._transcript.token_ids:
                raise SpecError(
                    f"{self._path}: expected the {self._shape[0]} tokens of {found.id} that "
                    f"{INDEX_NAME} names, found {len(found.token_ids)} others",
                    _AGAIN,
                )
            if shape != self._shape:
                raise SpecError(
                    f"{self._path}: expected hidden states of shape {self._shape} [tokens, aux "
                    f"layers + 1, hidden], found {shape}",
                    _AGAIN,
                )
            return _require_bytes(stream, self._path)


def _require_bytes(stream: Any, path: Path) -> torch.Tensor:
    """The hidden states, which must be those that the file's own digest was made of."""
    states: torch.Tensor = stream.get_tensor("hidden_states")
    recorded = stream.metadata().get(_SHA256)
    if _sha256_of_states(states) != recorded:
        raise SpecError(
            f"{path}: expected hidden states of SHA-256 {str(recorded)[:12]} as the file itself "
            "says, found other bytes",
            _AGAIN,
        )
    return states


def _sha256_of_states(states: torch.Tensor) -> str:
    return hashlib.sha256(states.contiguous().view(torch.uint8).numpy()).hexdigest()


@contextmanager
def _open_row(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as stream:
            yield stream
    except (OSError, SafetensorError) as error:
        raise SpecError(f"{path}: no readable row of transcripts: {error}", _AGAIN) from error


def _head_of(stream: Any, path: Path) -> Head:
    try:
        transcript = Transcript.model_validate_json((stream.metadata() or {}).get(_METADATA, ""))
    except ValidationError as error:
        raise SpecError(f"{path}: no row of transcripts: {error}", _AGAIN) from error
    token_ids = tuple(stream.get_tensor("token_ids").tolist())
    shape = tuple(stream.get_slice("hidden_states").get_shape())
    if token_ids != transcript.token_ids or shape[0] != len(token_ids):
        raise SpecError(
            f"{path}: expected hidden states of {len(transcript.token_ids)} tokens of "
            f"{transcript.id}, found {shape[0]} states and {len(token_ids)} tokens",
            _AGAIN,
        )
    return Head(transcript, shape)
