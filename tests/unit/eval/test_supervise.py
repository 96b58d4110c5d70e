import os
from types import SimpleNamespace
from typing import Any

import pytest

from eval import supervise


@pytest.mark.parametrize(
    ("is_orphan", "given", "grace_s"),
    [
        (False, (180.0, 20.0), 180.0),
        (True, (180.0, 20.0), 20.0),
        (True, (180.0,), 3.0),
        (True, (1.0, 20.0), 1.0),
    ],
)
def test_a_command_whose_owner_is_gone_has_the_time_that_it_was_given_to_stop(
    monkeypatch: pytest.MonkeyPatch, is_orphan: bool, given: tuple[float, ...], grace_s: float
) -> None:
    words = supervise.guard(["train", "--"], *given)
    owner = os.getppid() + is_orphan
    found: list[float] = []

    class Child(SimpleNamespace):
        pid, returncode = 1, 0

        def __init__(self, command: list[str], **_: Any) -> None:
            super().__init__(command=command)

        def poll(self) -> int | None:
            return None

    def see_signal(*_: object) -> SimpleNamespace:
        return SimpleNamespace(si_signo=supervise.signal.SIGTERM)

    def stop(child: Child, seconds: float) -> None:
        assert child.command == ["train", "--"]
        found.append(seconds)

    monkeypatch.setattr(supervise.subprocess, "Popen", Child)
    monkeypatch.setattr(supervise.signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(supervise.signal, "sigtimedwait", see_signal)
    monkeypatch.setattr(supervise, "_stop", stop)
    monkeypatch.setattr(supervise, "_kill_group", lambda _: None)
    arguments = words[words.index(str(os.getpid())) :]
    supervise.main([str(owner), *arguments[1:]])
    assert found == [grace_s]
