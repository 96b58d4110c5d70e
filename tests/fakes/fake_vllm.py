"""A server that answers as vLLM 0.32 does, at a fixed rate and with a fixed acceptance pattern."""

import itertools
import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_POLL_S = 0.01
"""Between looks whether to stop; else each test would wait half a second for its server's end."""
_FIRST = 100
_PROMPT = list(range(1, 8))


class FakeVllm:
    """Streams `num_tokens` tokens, one step every `step_s` seconds.

    Args:
        accepted: Accepted draft tokens of each step in turn, repeated; empty: no speculation.
        k: Proposed tokens per step.
        num_tokens: Answer length at most; `max_tokens` of the request wins when smaller.
        step_s: Seconds per step.
        prefill_s: Seconds to the first token.
        fault: "hang" never ends, "cut" closes in the middle, "error" answers 500, "foreign" counts
            a request that nobody here made, "no_usage" leaves the usage chunk out.
        first_token_id: Of every answer; the others follow it one by one. Another than 100: see
            `_ids_of`.
        port: To listen on; 0 for any.
    """

    def __init__(
        self,
        accepted: Sequence[int] = (),
        *,
        k: int = 3,
        num_tokens: int = 16,
        step_s: float = 0.0,
        prefill_s: float = 0.0,
        fault: str | None = None,
        first_token_id: int = 100,
        port: int = 0,
    ) -> None:
        self.accepted, self.k, self.num_tokens = tuple(accepted), k, num_tokens
        self.step_s, self.prefill_s, self.fault = step_s, prefill_s, fault
        self.first_token_id = first_token_id
        self.requests: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._histogram = [0] * (k + 1)
        self._drafted = self._requests_done = self._tokens = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None: ...

            def do_GET(self) -> None:
                body = {"/metrics": fake.metrics(), "/version": '{"version": "0.32.0"}'}
                self._send(200, body.get(self.path, ""))

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                fake.answer(self, json.loads(self.rfile.read(length)))

            def _send(self, status: int, text: str) -> None:
                raw = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        class Server(ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

        self._server = Server(("127.0.0.1", port), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def metrics(self) -> str:
        """Counters in the form of tests/data/metrics-vllm-0.32.0.txt."""
        labels = 'engine="0",model_name="verifier"'
        at = [sum(self._histogram[i:]) for i in range(1, self.k + 1)]
        accepted = sum(j * n for j, n in enumerate(self._histogram))
        foreign = 1 if self.fault == "foreign" and self._requests_done else 0
        lines = [
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {sum(self._histogram)}.0",
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {self._drafted}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}.0",
            f'vllm:request_success_total{{{labels},finished_reason="length"}} '
            f"{self._requests_done + foreign}.0",
            f"vllm:generation_tokens_total{{{labels}}} {self._tokens}.0",
        ]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {n}.0'
            for i, n in enumerate(at if self.accepted else ())
        ]
        return "\n".join(lines) + "\n"

    def answer(self, handler: Any, body: dict[str, Any]) -> None:
        """One chat completion, streamed or whole."""
        with self._lock:
            self.requests.append(body)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.fault == "error":
                handler._send(500, '{"error": {"message": "the engine is dead"}}')
            elif "prompt" in body:
                found = [{"top_logprobs": [_next_tokens(prompt)]} for prompt in body["prompt"]]
                choices = [{"index": i, "logprobs": each} for i, each in enumerate(found)]
                handler._send(200, json.dumps({"choices": choices[::-1]}))
            elif body.get("stream"):
                self._stream(handler, body)
            else:
                handler._send(200, json.dumps(self._whole(body)))
        finally:
            with self._lock:
                self._at_once -= 1

    def _steps(self, body: dict[str, Any]) -> list[int]:
        """Emitted tokens of each step, the prefill's first."""
        left = min(self.num_tokens, body["max_tokens"]) - 1
        steps, pattern = [1], itertools.cycle(self.accepted or (0,))
        while left > 0:
            accepted = next(pattern)
            if self.accepted:
                with self._lock:
                    self._histogram[accepted] += 1
                    self._drafted += self.k
            steps.append(min(accepted + 1, left))
            left -= steps[-1]
        return steps

    def _metrics_of(self, num_steps: int) -> dict[str, Any] | None:
        if not self.accepted:
            return None
        pattern = list(itertools.islice(itertools.cycle(self.accepted), num_steps))
        histogram = [pattern.count(j) for j in range(self.k + 1)]
        return {
            "speculative_decoding": {
                "mean_acceptance_length": 1 + sum(pattern) / max(num_steps, 1),
                "draft_acceptance_rate": sum(pattern) / max(num_steps * self.k, 1),
                "acceptance_histogram": histogram,
                "num_spec_steps": num_steps,
                "num_accepted_draft_tokens": sum(pattern),
                "num_draft_tokens": num_steps * self.k,
                "num_spec_tokens": self.k,
            }
        }

    def _finish(self, num_tokens: int) -> dict[str, int]:
        with self._lock:
            self._requests_done += 1
            self._tokens += num_tokens
        return {"prompt_tokens": 7, "completion_tokens": num_tokens, "total_tokens": 7 + num_tokens}

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        steps = self._steps(body)
        ids = _ids_of(body, self.first_token_id, sum(steps))
        message = {"role": "assistant", "content": "".join(f" t{i}" for i in ids)}
        choice = {"index": 0, "message": message, "finish_reason": "length", "token_ids": ids}
        metrics = self._metrics_of(len(steps) - 1)
        return {"choices": [choice], "usage": self._finish(len(ids)), "metrics": metrics}

    def _stream(self, handler: Any, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        steps = self._steps(body)
        start = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        self._event(handler, {"choices": [start], "prompt_token_ids": _PROMPT})
        tokens, began = iter(_ids_of(body, self.first_token_id, sum(steps))), time.monotonic()
        for index, count in enumerate(steps):
            due = began + self.prefill_s + index * self.step_s
            time.sleep(max(due - time.monotonic(), 0.0))
            if index == 2 and self.fault == "cut":
                handler.close_connection = True
                return
            if index == 2 and self.fault == "hang":
                time.sleep(30)
                return
            ids = list(itertools.islice(tokens, count))
            is_last = index == len(steps) - 1
            choice = {
                "index": 0,
                "delta": {"content": "".join(f" t{i}" for i in ids)},
                "finish_reason": "length" if is_last else None,
                "token_ids": ids,
            }
            if is_last:
                usage = self._finish(sum(steps))
            self._event(handler, {"choices": [choice]})
        if self.fault != "no_usage":
            metrics = self._metrics_of(len(steps) - 1)
            self._event(handler, {"choices": [], "usage": usage, "metrics": metrics})
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True

    def _event(self, handler: Any, document: dict[str, Any]) -> None:
        handler.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        handler.wfile.flush()


def _ids_of(body: dict[str, Any], first: int, count: int) -> list[int]:
    """The answer's tokens; another server's differ from some place on, by the question's length."""
    same = len(body["messages"][-1]["content"]) % 5 if first != _FIRST else count
    return [(_FIRST if index < same else first) + index for index in range(count)]


def _next_tokens(prompt: list[int]) -> dict[str, float]:
    """Logprobs after a prompt and the beginning of our answer: another server's token is near."""
    own = prompt[len(_PROMPT) :]
    if prompt != [*_PROMPT, *(_FIRST + index for index in range(len(own)))]:
        return {}
    gap = 0.01 * (len(own) + 1)
    return {f"token_id:{_FIRST + len(own)}": -0.7, f"token_id:{500 + len(own)}": -0.7 - gap}
