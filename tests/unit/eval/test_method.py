"""S22: vLLM would guess the method from the folder's name; we always say it."""

import json
from pathlib import Path

from eval.server import VllmServer
from eval.spec import DrafterSpec, ServerSpec


def test_the_method_is_always_passed_whatever_the_folder_is_called(tmp_path: Path) -> None:
    drafter = DrafterSpec(name="d", path=tmp_path / "eagle-run1")
    server = VllmServer(ServerSpec(verifier=tmp_path), tmp_path / "log", drafter, 3)
    command = server.build_command()
    passed = json.loads(command[command.index("--speculative-config") + 1])
    assert passed["method"] == "eagle3"
