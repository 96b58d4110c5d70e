"""The asking side: chat requests with a limit on how many are under way, timed token by token."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import aiohttp
from pydantic import ValidationError

from eval.answers import Answer, Batch, Failure, Reading
from eval.errors import RequestError
from eval.spec import Prompt, Sampling

_READ_BYTES = 1 << 20
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_LEAST_WAIT_S, _MOST_WAIT_S = 1.0, 30.0
_FOREIGN = (json.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValidationError)
"""What reading raises over a document that is no answer."""


def ask(
    base_url: str,
    model: str,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    concurrency: int = 1,
    timeout_s: float = 600.0,
    is_streaming: bool = True,
    extra_body: dict[str, Any] | None = None,
    is_patient: bool = False,
    api_key: str | None = None,
    on_answer: Callable[[Answer], None] | None = None,
) -> Batch:
    """Asks every prompt, all turns with the model's own answers, and returns when all are done.

    Args:
        base_url: Address of an OpenAI-compatible server, without `/v1`.
        model: Served model name.
        prompts: What to ask; started in this order.
        sampling: Sent with every request.
        concurrency: Requests under way at most.
        timeout_s: Seconds for one request as a whole.
        is_streaming: Without streaming there is no TTFT and no TPOT.
        extra_body: More request fields, for example `{"logprobs": true}`.
        is_patient: A server that is too busy (HTTP 429, 503) is asked again, within `timeout_s`.
        api_key: Of a server that asks for one; it is in no answer and no failure.
        on_answer: Called with each answer as it arrives, from this thread.
    """
    asker = _Asker(
        base_url,
        model,
        sampling,
        timeout_s=timeout_s,
        is_streaming=is_streaming,
        extra_body=extra_body,
        is_patient=is_patient,
        api_key=api_key,
        on_answer=on_answer,
    )
    return asyncio.run(asker.ask_all(prompts, concurrency))


class _BusyError(RequestError):
    """The server has too much to do just now."""

    def __init__(self, reason: str, retry_after: str | None) -> None:
        super().__init__(reason)
        is_number = retry_after is not None and retry_after.isdecimal()
        self.wait_s = min(float(retry_after or 0), _MOST_WAIT_S) if is_number else None
        """As the server says; None where it does not, or names a date."""


class _Asker:
    def __init__(
        self,
        base_url: str,
        model: str,
        sampling: Sampling,
        *,
        timeout_s: float,
        is_streaming: bool,
        extra_body: dict[str, Any] | None,
        is_patient: bool,
        api_key: str | None,
        on_answer: Callable[[Answer], None] | None,
    ) -> None:
        self._url = f"{base_url}/v1/chat/completions"
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._is_patient = is_patient
        self._on_answer = on_answer
        self._is_streaming = is_streaming
        self._body: dict[str, Any] = {
            "model": model,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            "ignore_eos": sampling.ignore_eos,
            "return_token_ids": True,
            "stream": is_streaming,
            **(extra_body or {}),
        }
        if is_streaming:
            self._body["stream_options"] = {"include_usage": True}

    async def ask_all(self, prompts: Sequence[Prompt], concurrency: int) -> Batch:
        limit = asyncio.Semaphore(concurrency)
        connector = aiohttp.TCPConnector(limit=0)
        started = time.perf_counter()
        async with aiohttp.ClientSession(
            connector=connector, read_bufsize=_READ_BYTES, headers=self._headers
        ) as session:

            async def one(prompt: Prompt) -> tuple[list[Answer], Failure | None]:
                async with limit:
                    return await self._converse(session, prompt)

            results = await asyncio.gather(*(one(prompt) for prompt in prompts))
        return Batch(
            answers=tuple(answer for answers, _ in results for answer in answers),
            failures=tuple(failure for _, failure in results if failure),
            wall_s=time.perf_counter() - started,
        )

    async def _converse(
        self, session: aiohttp.ClientSession, prompt: Prompt
    ) -> tuple[list[Answer], Failure | None]:
        answers: list[Answer] = []
        messages = prompt.opening()
        for turn, question in enumerate(prompt.turns):
            messages.append({"role": "user", "content": question})
            try:
                async with asyncio.timeout(self._timeout_s):
                    ask = partial(self._ask_turn, session, prompt, turn, messages)
                    answer = await self._ask_patiently(ask)
            except TimeoutError:
                reason = f"no end after {self._timeout_s:g} s"
                return answers, Failure(prompt_id=prompt.id, turn=turn, reason=reason)
            except (aiohttp.ClientError, RequestError, ConnectionError) as error:
                reason = f"{type(error).__name__}: {error}"
                return answers, Failure(prompt_id=prompt.id, turn=turn, reason=reason)
            answers.append(answer)
            if self._on_answer:
                self._on_answer(answer)
            thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
            messages.append({"role": "assistant", "content": answer.text, **thought})
        return answers, None

    async def _ask_patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """One turn; a busy server is asked again when it says, or ever more rarely."""
        wait_s = _LEAST_WAIT_S
        while True:
            try:
                return await ask()
            except _BusyError as busy:
                if not self._is_patient:
                    raise
                await asyncio.sleep(busy.wait_s or wait_s)
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    async def _ask_turn(
        self,
        session: aiohttp.ClientSession,
        prompt: Prompt,
        turn: int,
        messages: list[dict[str, str]],
    ) -> Answer:
        sent_s = time.perf_counter()
        timeout = aiohttp.ClientTimeout(total=None)
        body = {**self._body, "messages": messages}
        async with session.post(self._url, json=body, timeout=timeout) as response:
            if response.status != HTTPStatus.OK:
                reason = f"HTTP {response.status}: {(await response.text())[:400]}"
                if response.status in _BUSY:
                    raise _BusyError(reason, response.headers.get("Retry-After"))
                raise RequestError(reason)
            reading = Reading()
            try:
                if self._is_streaming:
                    async for line in response.content:
                        reading.take_line(line, time.perf_counter() - sent_s)
                else:
                    reading.take_whole(await response.json(), time.perf_counter() - sent_s)
                return reading.to_answer(prompt, turn, sent_s)
            except _FOREIGN as error:
                found = f"{type(error).__name__}: {error}"
                raise RequestError(f"expected an answer as vLLM gives it, found {found}") from error
