"""Optuna's own dashboard reads a sweep's journal."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from fakes.sweep_world import World

_START = "from optuna_dashboard._cli import main; main()"
_WAIT_S = 60.0


def test_the_dashboard_starts_on_a_sweeps_journal(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", _START, "--port", str(port), str(tmp_path / "journal.log")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            found = _studies(f"http://127.0.0.1:{port}/api/studies")
        finally:
            server.terminate()
    assert [study["study_name"] for study in found] == [world.config.name]


def _studies(address: str) -> list[dict[str, object]]:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - our own
                found: list[dict[str, object]] = json.load(answer)["study_summaries"]
                return found
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
