"""A server process that answers chat requests at once, each prompt always with the same token ids.

Takes vLLM's flags. Prompt ids are the bytes of the conversation. What it does wrong is said by
variables: ANSWERS_DELAY_S per answer, ANSWERS_DIE_AFTER that many, ANSWERS_FAIL_FIRST requests with
500, ANSWERS_BUSY lets every so manieth request in and gives the others 429; a question with REFUSE
in it gets 400, one with NEVER gets 500, one with HANG never an answer, one with FOREIGN another
document, one with EMPTY no token, one with ABORT half an answer, one with THINK is thought about.
ANSWERS_LOG is a file with a line per question, ANSWERS_FIELDS one with the last request.
ANSWERS_NAMES are the models it lists, ANSWERS_PASS is the key that it asks for and repeats to
whoever has another.
"""

import argparse
import hashlib
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VOCAB = 256
NAMES = os.environ.get("ANSWERS_NAMES", "verifier").split()
_lock = threading.Lock()
_counts = {"requests": 0, "answers": 0}


def answer(messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
    """Between 2 and 9 tokens; 2 ends an answer that was not cut off."""
    prompt_ids = list(json.dumps(messages).encode())
    digest = hashlib.sha256(bytes(prompt_ids)).digest()
    token_ids = [3 + byte % (VOCAB - 3) for byte in digest[: 1 + digest[-1] % 8]] + [2]
    is_thinking = "THINK" in messages[-1]["content"]
    thought = {"reasoning": f"hm {digest.hex()[:4]}"} if is_thinking else {}
    is_cut = len(token_ids) > max_tokens
    return {
        "prompt_token_ids": prompt_ids,
        "choices": [
            {
                "message": {"role": "assistant", "content": digest.hex()[:8], **thought},
                "finish_reason": "length" if is_cut else "stop",
                "token_ids": token_ids[:max_tokens],
            }
        ],
        "usage": {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": min(len(token_ids), max_tokens),
        },
    }


def spoil(question: str, document: dict[str, Any]) -> dict[str, Any]:
    """An answer, or what has become of it."""
    choice = document["choices"][0]
    if "EMPTY" in question:
        choice["token_ids"], document["usage"]["completion_tokens"] = [], 0
    if "ABORT" in question:
        choice["finish_reason"] = "abort"
    return document


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None: ...

    def is_let_in(self) -> bool:
        wanted = os.environ.get("ANSWERS_PASS")
        given = self.headers.get("Authorization")
        if not wanted or given == f"Bearer {wanted}":
            return True
        self.reply(401, {"error": f"not {wanted}: {given}"})
        return False

    def do_GET(self) -> None:
        if self.path == "/health" or self.is_let_in():
            self.reply(200, {"data": [{"id": name} for name in NAMES]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_let_in():
            return
        with _lock:
            _counts["requests"] += 1
            number = _counts["requests"]
        question = body["messages"][-1]["content"]
        if log := os.environ.get("ANSWERS_LOG"):
            with Path(log).open("a") as stream:
                stream.write(json.dumps(question) + "\n")
        if fields := os.environ.get("ANSWERS_FIELDS"):
            Path(fields).write_text(json.dumps(body))
        time.sleep(float(os.environ.get("ANSWERS_DELAY_S", "0")))
        if "HANG" in question:
            time.sleep(20)
        if number % int(os.environ.get("ANSWERS_BUSY", "1")):
            self.reply(429, {"error": "too many requests"})
        elif "FOREIGN" in question:
            self.reply(200, {"text": "hello"})
        elif "REFUSE" in question:
            self.reply(400, {"error": "the prompt is too long"})
        elif "NEVER" in question or number <= int(os.environ.get("ANSWERS_FAIL_FIRST", "0")):
            self.reply(500, {"error": "not today"})
        else:
            self.reply(200, spoil(question, answer(body["messages"], body["max_tokens"])))
            with _lock:
                _counts["answers"] += 1
                if _counts["answers"] == int(os.environ.get("ANSWERS_DIE_AFTER", "-1")):
                    os._exit(1)

    def reply(self, status: int, document: dict[str, Any]) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    flags, _ = parser.parse_known_args()
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(("127.0.0.1", flags.port), Handler).serve_forever()
