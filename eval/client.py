"""The asking side: chat requests with a limit on how many are under way, timed token by token."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from eval.answers import Answer, Batch, Failure, Reading
from eval.errors import RequestError
from eval.spec import Prompt, Sampling

_READ_BYTES = 1 << 20


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
        on_answer: Called with each answer as it arrives, from this thread.
    """
    asker = _Asker(
        base_url,
        model,
        sampling,
        timeout_s=timeout_s,
        is_streaming=is_streaming,
        extra_body=extra_body,
        on_answer=on_answer,
    )
    return asyncio.run(asker.ask_all(prompts, concurrency))


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
        on_answer: Callable[[Answer], None] | None,
    ) -> None:
        self._url = f"{base_url}/v1/chat/completions"
        self._timeout_s = timeout_s
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
        async with aiohttp.ClientSession(connector=connector, read_bufsize=_READ_BYTES) as session:

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
        messages: list[dict[str, str]] = []
        for turn, question in enumerate(prompt.turns):
            messages.append({"role": "user", "content": question})
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._ask_turn(session, prompt, turn, messages)
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
            if response.status != 200:  # noqa: PLR2004 - HTTP OK
                raise RequestError(f"HTTP {response.status}: {(await response.text())[:400]}")
            reading = Reading()
            if self._is_streaming:
                async for line in response.content:
                    reading.take_line(line, time.perf_counter() - sent_s)
            else:
                reading.take_whole(await response.json(), time.perf_counter() - sent_s)
        return reading.to_answer(prompt, turn, sent_s)
