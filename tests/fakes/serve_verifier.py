"""A server process whose answers are a real verifier's, by transformers: vLLM's place in a test.

Takes vLLM's flags and speaks the part of its protocol that a regeneration uses.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from eval.greedy import GreedyVerifier


class Answerer:
    """The verifier, one question at a time."""

    def __init__(self, path: Path) -> None:
        config = AutoConfig.from_pretrained(path).get_text_config()
        self._model = GreedyVerifier(path, (), config.num_hidden_layers, "float32")
        self._lock = threading.Lock()

    def answer(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
        prompt_ids = self._model.render(messages)
        with self._lock:
            (reply,) = self._model.answer([prompt_ids], max_tokens, 0)
        choice = {
            "message": {"role": "assistant", "content": self._model.text(reply.token_ids)},
            "finish_reason": "length" if len(reply.token_ids) == max_tokens else "stop",
            "token_ids": reply.token_ids,
        }
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(reply.token_ids)}
        return {"prompt_token_ids": prompt_ids, "choices": [choice], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answerer: Answerer

    def log_message(self, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        self.reply({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(self.answerer.answer(body["messages"], body["max_tokens"]))

    def reply(self, document: dict[str, Any]) -> None:
        raw = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    flags, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    Handler.answerer = Answerer(flags.model)
    ThreadingHTTPServer(("127.0.0.1", flags.port), Handler).serve_forever()
