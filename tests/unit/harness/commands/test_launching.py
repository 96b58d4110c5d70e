from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.commands import launching
from harness.config.bench import BenchConfig
from harness.errors import WorkError
from harness.settings import load_settings


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Runs a bench as a task that ends so."""
    nobody: Any = None
    monkeypatch.setattr(launching, "open_store", lambda _: nobody)

    def there(code: int) -> None:
        monkeypatch.setattr(launching, "follow", lambda *_: code)
        launching.run_there("bench", BenchConfig(), {}, load_settings(tmp_path), nobody)

    return there


def test_a_command_ends_as_its_task_ended(run: Callable[[int], None]) -> None:
    run(0)
    with pytest.raises(typer.Exit) as caught:
        run(4)
    assert caught.value.exit_code == 4


def test_a_task_that_a_signal_ended_has_failed_and_says_so(run: Callable[[int], None]) -> None:
    with pytest.raises(WorkError, match="harness bench was ended by SIGKILL") as caught:
        run(-9)
    assert "its output is in" in str(caught.value.hint)
