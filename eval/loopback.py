"""This machine's loopback: free ports, and plain requests to a server on 127.0.0.1."""

import http.client
import json
import socket

from eval.errors import ServerStartError


def find_free_port() -> int:
    """A port that nobody listens on just now; another process may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int) -> None:
    """Raises ServerStartError when the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerStartError(
                f"port {port} on 127.0.0.1 is taken by another process",
                "stop that process, or leave the port out: a free one is chosen then",
            ) from error


def is_healthy(port: int | None) -> bool:
    """Whether `/health` answers 200; vLLM says so only once its engine is up."""
    try:
        return port is not None and request(port, "/health", None, 2.0)[0] == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def request(port: int, path: str, body: object, timeout_s: float) -> tuple[int, str]:
    """Status and text of a GET, or of a POST when there is a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
