"""Transcripts made: the verifier's answers to prompts, or a server's, with hidden states.

Work that was interrupted goes on with the turns that are missing; the verifier is loaded only if
one is. Read them with `read_rows`.
"""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from eval.answers import Answer
from eval.capture import default_device
from eval.errors import SpecError
from eval.facts import VerifierFacts
from eval.files import write_atomic
from eval.greedy import GreedyVerifier, Reply
from eval.progress import ProgressFn
from eval.prompts import digest_prompts
from eval.sequences import split_by_width
from eval.spec import Prompt
from eval.transcriptfiles import (
    INDEX_NAME,
    Index,
    Plan,
    Transcript,
    TranscriptSet,
    digest_answers,
    load_transcripts,
    read_rows,
    read_whole,
    require_plan,
    row_path,
    write_row,
)

__all__ = [
    "Transcript",
    "TranscriptSet",
    "digest_answers",
    "load_transcripts",
    "read_rows",
    "record_answers",
    "record_prompts",
]

_WHAT = "recording the verifier's answers"
_BUDGET_TOKENS = {"cpu": 4096, "cuda": 65536}
"""Prompt and answer tokens, padding included, that are held at once."""


class _Turn(NamedTuple):
    """One turn to be recorded."""

    number: int
    id: str
    category: str
    turn: int
    prompt_ids: list[int]
    said: tuple[int, ...] | None
    """The answer; None: it is asked for."""


def record_prompts(
    verifier: VerifierFacts,
    prompts: Sequence[Prompt],
    folder: Path,
    *,
    max_tokens: int,
    num_beyond: int,
    aux_layer_ids: tuple[int, ...],
    dtype: str = "float32",
    progress: ProgressFn,
) -> TranscriptSet:
    """The verifier's greedy answers to all turns, each with its own answers before it.

    Args:
        verifier: Who answers.
        prompts: What is asked.
        folder: Of the transcripts; a finished one of the same inputs is returned as it is.
        max_tokens: Answer tokens per turn at most; an end-of-text token ends it earlier.
        num_beyond: Tokens kept past the end of each answer; K - 1 explain all that vLLM accepts.
        aux_layer_ids: Layers whose inputs are kept; the final norm's input always is.
        dtype: Of the verifier's arithmetic and the kept states.
        progress: Told how far it is.

    Raises:
        SpecError: The folder holds other transcripts, or a damaged file.
        VerifierError: The verifier does not load, or overflows.
    """
    plan = Plan(
        verifier_digest=verifier.digest,
        source="prompts",
        source_digest=digest_prompts(prompts),
        max_tokens=max_tokens,
        num_beyond=num_beyond,
        aux_layer_ids=aux_layer_ids,
        dtype=dtype,
    )
    numbers = _number_turns(prompts)
    recording = _Recording(verifier, folder, plan, len(numbers), progress)
    for prompt in prompts:
        for turn in range(len(prompt.turns)):
            if not recording.recall(numbers[prompt.id, turn], prompt.id, turn):
                break  # later turns had the lost answer before them
    for turn in range(max((len(prompt.turns) for prompt in prompts), default=0)):
        asked = [
            _Turn(
                number=numbers[prompt.id, turn],
                id=prompt.id,
                category=prompt.category,
                turn=turn,
                prompt_ids=recording.render(prompt, turn, numbers[prompt.id, 0]),
                said=None,
            )
            for prompt in prompts
            if turn < len(prompt.turns) and numbers[prompt.id, turn] not in recording.held
        ]
        recording.record(asked)
    return recording.finish()


def record_answers(
    verifier: VerifierFacts,
    answers: Sequence[Answer],
    folder: Path,
    *,
    num_beyond: int,
    aux_layer_ids: tuple[int, ...],
    dtype: str = "float32",
    progress: ProgressFn,
) -> TranscriptSet:
    """The hidden states of answers that a server gave, and how they would have gone on.

    Args as of `record_prompts`; `num_beyond` tokens are computed past the end of each answer.

    Raises:
        SpecError: An answer without token ids; the folder holds other transcripts, or damage.
        VerifierError: The verifier does not load, or overflows.
    """
    plan = Plan(
        verifier_digest=verifier.digest,
        source="answers",
        source_digest=digest_answers(answers),
        max_tokens=None,
        num_beyond=num_beyond,
        aux_layer_ids=aux_layer_ids,
        dtype=dtype,
    )
    recording = _Recording(verifier, folder, plan, len(answers), progress)
    recording.record(
        [
            _Turn(
                number=number,
                id=answer.prompt_id,
                category=answer.category,
                turn=answer.turn,
                prompt_ids=list(answer.prompt_token_ids),
                said=answer.token_ids,
            )
            for number, answer in enumerate(answers)
            if not recording.recall(number, answer.prompt_id, answer.turn)
        ]
    )
    return recording.finish()


class _Recording:
    """One folder being filled."""

    def __init__(
        self,
        verifier: VerifierFacts,
        folder: Path,
        plan: Plan,
        num_turns: int,
        progress: ProgressFn,
    ) -> None:
        self._verifier = verifier
        self._folder = folder
        self._plan = plan
        self._num_turns = num_turns
        self._progress = progress
        self._hidden_size = 0
        self._answers_s = self._states_s = 0.0
        self.held: dict[int, Transcript] = {}
        """By number: the turns that are there."""
        require_plan(folder, plan)

    @cached_property
    def _model(self) -> GreedyVerifier:
        self._progress("loading the verifier", 0, 0)
        facts, plan = self._verifier, self._plan
        return GreedyVerifier(facts.path, plan.aux_layer_ids, facts.num_layers, plan.dtype)

    def recall(self, number: int, prompt_id: str, turn: int) -> bool:
        """Whether this turn is there already, whole; one that is damaged is recorded anew."""
        found = read_whole(row_path(self._folder, number))
        if found is None or (found.transcript.id, found.transcript.turn) != (prompt_id, turn):
            return False
        self.held[number] = found.transcript
        self._hidden_size = found.shape[-1]
        return True

    def render(self, prompt: Prompt, turn: int, first: int) -> list[int]:
        """The tokens before the answer of a turn; the answers before it are there."""
        messages = prompt.opening()
        for earlier in range(turn):
            messages.append({"role": "user", "content": prompt.turns[earlier]})
            messages.append({"role": "assistant", "content": self.held[first + earlier].text})
        messages.append({"role": "user", "content": prompt.turns[turn]})
        rendered = self._model.render(messages)
        needed = len(rendered) + (self._plan.max_tokens or 0)
        if needed > self._model.context_tokens:
            raise SpecError(
                f"{prompt.id}: expected at most {self._model.context_tokens} tokens of prompt and "
                f"answer, found {len(rendered)} and {self._plan.max_tokens}",
                "leave the prompt out, or ask for fewer tokens",
            )
        return rendered

    def record(self, turns: Sequence[_Turn]) -> None:
        """Answers, hidden states and files of some turns."""
        for batch in _batches(turns, self._plan):
            began = time.monotonic()
            replies = self._answer(batch)
            answered = time.monotonic()
            whole = [t.prompt_ids + r.token_ids for t, r in zip(batch, replies, strict=True)]
            states = self._model.states(whole)
            self._answers_s += answered - began
            self._states_s += time.monotonic() - answered
            for turn, reply, own in zip(batch, replies, states, strict=True):
                self._write(turn, reply, own)
            self._progress(_WHAT, len(self.held), self._num_turns)

    def finish(self) -> TranscriptSet:
        """The set, once every turn is there."""
        index = Index(
            plan=self._plan,
            hidden_size=self._hidden_size,
            transcripts=tuple(self.held[number] for number in range(self._num_turns)),
        )
        path = self._folder / INDEX_NAME
        if self._states_s or not path.exists():
            write_atomic(path, index.model_dump_json())
        found = load_transcripts(self._folder)
        if not self._states_s:
            return found
        return found.model_copy(update={"answers_s": self._answers_s, "states_s": self._states_s})

    def _answer(self, batch: Sequence[_Turn]) -> list[Reply]:
        plan = self._plan
        if plan.max_tokens is not None:
            prompts = [turn.prompt_ids for turn in batch]
            return self._model.answer(prompts, plan.max_tokens, plan.num_beyond)
        said = [list(turn.said or ()) for turn in batch]
        whole = [turn.prompt_ids + own for turn, own in zip(batch, said, strict=True)]
        beyond = self._model.go_on(whole, plan.num_beyond)
        return [Reply(own, more) for own, more in zip(said, beyond, strict=True)]

    def _write(self, turn: _Turn, reply: Reply, states: Tensor) -> None:
        transcript = Transcript(
            id=turn.id,
            category=turn.category,
            turn=turn.turn,
            prompt_length=len(turn.prompt_ids),
            token_ids=(*turn.prompt_ids, *reply.token_ids),
            beyond=tuple(reply.beyond),
            text=self._model.text(reply.token_ids),
        )
        write_row(row_path(self._folder, turn.number), transcript, states)
        self.held[turn.number] = transcript
        self._hidden_size = states.shape[-1]


def _number_turns(prompts: Sequence[Prompt]) -> dict[tuple[str, int], int]:
    """The place of each turn among all, by prompt id and turn."""
    turns = [(prompt.id, turn) for prompt in prompts for turn in range(len(prompt.turns))]
    return {key: number for number, key in enumerate(turns)}


def _batches(turns: Sequence[_Turn], plan: Plan) -> Iterator[list[_Turn]]:
    """Turns of like length together, padding included within the budget; a longer one alone."""

    def width(turn: _Turn) -> int:
        room = (plan.max_tokens or 0) if turn.said is None else len(turn.said)
        return len(turn.prompt_ids) + room + plan.num_beyond

    return split_by_width(turns, width, _BUDGET_TOKENS[default_device()])
