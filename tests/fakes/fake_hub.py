"""A model hub on a loopback port: as much of its HTTP interface as one upload needs."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

COMMIT = "c" * 40
_POLL_S = 0.01


class FakeHub:
    """Serves while it is a context; `files` is what it holds, `deleted` what was taken away."""

    def __init__(self, *files: str, is_refusing: bool = False) -> None:
        self.files: dict[str, bytes] = dict.fromkeys(files, b"old")
        self.deleted: list[str] = []
        self.messages: list[str] = []
        self.is_refusing = is_refusing
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                self.deleted.append(value["path"])
                del self.files[value["path"]]


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None: ...

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if hub.is_refusing or "Authorization" not in self.headers:
                self.reply(401, {"error": "who are you?"})
            elif path == "/api/whoami-v2":
                self.reply(200, {"name": "tester", "type": "user", "auth": {}})
            else:
                entries = [
                    {"type": "file", "path": name, "size": 3, "oid": "0" * 40} for name in hub.files
                ]
                is_tree = "/tree/" in path
                siblings = [{"rfilename": name} for name in hub.files]
                info = {"id": "org/name", "sha": COMMIT, "siblings": siblings}
                self.reply(200, entries if is_tree else info)

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            path = urlsplit(self.path).path
            if path == "/api/repos/create":
                self.reply(200, {"url": f"{hub.url}/org/name", "id": "1"})
            elif "/preupload/" in path:
                wanted = [file["path"] for file in json.loads(raw)["files"]]
                modes = [
                    {"path": name, "uploadMode": "regular", "shouldIgnore": False}
                    for name in wanted
                ]
                self.reply(200, {"files": modes})
            elif "/commit/" in path:
                hub.commit([json.loads(line) for line in raw.splitlines()])
                url = f"{hub.url}/org/name/commit/{COMMIT}"
                self.reply(200, {"commitUrl": url, "commitOid": COMMIT, "success": True})
            else:
                self.reply(200, {"ok": True, "message": None, "errors": [], "warnings": []})

        def reply(self, status: int, document: object) -> None:
            raw = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    return Handler
