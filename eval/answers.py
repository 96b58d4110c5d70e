"""What comes back from a server: answers with their times and counts, read from responses.

`Answer` holds all that later figures are made of; formulas over many of them live elsewhere.
"""

import json
from typing import Any

from pydantic import Field, ValidationError

from eval.errors import RequestError
from eval.spec import Frozen, Prompt

_BROKEN_OFF = {"abort", "error"}
"""Source: vLLM v1/engine/__init__.py, FinishReason, 0.32."""


class Speculation(Frozen):
    """What the server counted for one request (`metrics.speculative_decoding`, vLLM 0.32)."""

    acceptance_histogram: tuple[int, ...]
    """Verify steps by number of accepted draft tokens; length K + 1."""
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int


class Answer(Frozen):
    """One answered turn. Times are seconds of a monotonic clock, counted from the send."""

    prompt_id: str
    category: str
    turn: int
    text: str
    reasoning: str = ""
    """What was thought before, if the server has a reasoning parser; its tokens are counted."""
    token_ids: tuple[int, ...]
    """Empty when the server sends none."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the server's chat template rendered it; empty when the server sends none."""
    num_prompt_tokens: int
    num_tokens: int
    """Answer tokens by the server's usage field, end-of-text included."""
    finish_reason: str
    sent_s: float
    """Monotonic clock at the send: comparable within one process only."""
    ttft_s: float | None
    """To the first token; None when not streamed."""
    latency_s: float
    """To the last token."""
    num_first_tokens: int = 1
    """Tokens in the first chunk: more than one only if the server merged steps."""
    num_chunks: int = 0
    speculation: Speculation | None = None
    response_id: str = Field(default="", exclude=True, repr=False)
    """The server's name of this answer, as long as it is of use: not kept."""

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first: (latency - TTFT) / (tokens - first tokens).

        Source: vLLM benchmarks/serve.py, 0.32, where the first chunk is taken to hold one token.
        """
        later = self.num_tokens - self.num_first_tokens
        if self.ttft_s is None or later < 1:
            return None
        return (self.latency_s - self.ttft_s) / later


class Failure(Frozen):
    """One turn that got no answer; later turns of its prompt were not asked."""

    prompt_id: str
    turn: int
    reason: str


class Batch(Frozen):
    """All answers and failures of one pass, in the order of the prompts, and its duration."""

    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    wall_s: float

    def require_complete(self) -> "Batch":
        """Raises RequestError that lists the failures, if there are any."""
        if self.failures:
            shown = "\n".join(
                f"  {f.prompt_id} turn {f.turn}: {f.reason}" for f in self.failures[:8]
            )
            raise RequestError(
                f"{len(self.failures)} of {len(self.failures) + len(self.answers)} requests "
                f"failed:\n{shown}",
                "the server's log says more; a larger request_timeout_s helps slow machines",
            )
        return self


class Reading:
    """One response as it is read: chunks go in, an Answer comes out."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._token_ids: list[int] = []
        self._prompt_token_ids: list[int] = []
        self._usage: dict[str, Any] | None = None
        self._metrics: dict[str, Any] | None = None
        self._finish_reason: str | None = None
        self._response_id = ""
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_first_tokens = 1
        self._num_chunks = 0

    def take_line(self, line: bytes, now_s: float) -> None:
        """Takes one line of a server-sent event stream, seen `now_s` seconds after the send."""
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            return
        chunk = json.loads(line[6:])
        if error := chunk.get("error"):
            raise RequestError(f"the server broke off: {error}")
        self._response_id = chunk.get("id") or self._response_id
        self._usage = chunk.get("usage") or self._usage
        self._metrics = chunk.get("metrics") or self._metrics
        self._prompt_token_ids = chunk.get("prompt_token_ids") or self._prompt_token_ids
        for choice in chunk.get("choices", ()):
            self._take_choice(choice, choice["delta"], now_s)

    def take_whole(self, document: dict[str, Any], now_s: float) -> None:
        """Takes a response that was not streamed."""
        self._response_id = document.get("id") or ""
        self._usage = document.get("usage")
        self._metrics = document.get("metrics")
        self._prompt_token_ids = document.get("prompt_token_ids") or []
        choice = document["choices"][0]
        self._take_choice(choice, choice["message"], now_s)
        self._first_s = None

    def _take_choice(self, choice: dict[str, Any], said: dict[str, Any], now_s: float) -> None:
        token_ids = choice.get("token_ids") or ()
        text = said.get("content") or ""
        # vLLM 0.32 says `reasoning`, servers before it `reasoning_content`.
        thought = said.get("reasoning") or said.get("reasoning_content") or ""
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if not text and not thought and not token_ids:
            return
        if self._first_s is None:
            self._first_s = now_s
            self._num_first_tokens = max(len(token_ids), 1)
        self._last_s = now_s
        self._num_chunks += 1
        self._texts.append(text)
        self._thoughts.append(thought)
        self._token_ids.extend(token_ids)

    def to_answer(self, prompt: Prompt, turn: int, sent_s: float) -> Answer:
        """The finished answer.

        Raises:
            RequestError: The stream ended without a finish reason or usage counts, or the server
                gave the request up.
        """
        if self._finish_reason is None or self._usage is None:
            raise RequestError("the stream ended before the answer did: no finish reason or usage")
        if self._finish_reason in _BROKEN_OFF:
            raise RequestError(f"the server broke the answer off: {self._finish_reason}")
        details = (self._metrics or {}).get("speculative_decoding")
        return Answer(
            prompt_id=prompt.id,
            category=prompt.category,
            turn=turn,
            text="".join(self._texts),
            reasoning="".join(self._thoughts),
            token_ids=tuple(self._token_ids),
            prompt_token_ids=tuple(self._prompt_token_ids),
            num_prompt_tokens=self._usage["prompt_tokens"],
            num_tokens=self._usage["completion_tokens"],
            finish_reason=self._finish_reason,
            sent_s=sent_s,
            ttft_s=self._first_s,
            latency_s=self._last_s,
            num_first_tokens=self._num_first_tokens,
            num_chunks=self._num_chunks,
            speculation=_read_speculation(details) if details else None,
            response_id=self._response_id,
        )


def _read_speculation(details: dict[str, Any]) -> Speculation:
    try:
        return Speculation.model_validate({key: details[key] for key in Speculation.model_fields})
    except (KeyError, ValidationError) as error:
        raise RequestError(f"unknown form of metrics.speculative_decoding: {details}") from error
