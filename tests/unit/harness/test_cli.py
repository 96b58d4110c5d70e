"""The door: what is listed, what it costs, and how failures end."""

import sqlite3
import subprocess
import sys

import pytest

from harness import cli
from harness.errors import CheckError, ConfigError, PrerequisiteError, WorkError


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    heavy = {"torch", "mlflow", "vllm", "optuna", "transformers", "pandas"}
    code = "import sys; from harness.cli import run; run(['--help']); "
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stderr.split())


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["brew"]) == 2
    assert "brew" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_listed_command_can_be_loaded(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (WorkError("it broke", "mend it"), 1),
        (ConfigError("bad key"), 2),
        (PrerequisiteError("no disk"), 3),
        (CheckError("unsound"), 4),
        (OSError(28, "No space left on device"), 3),
        (NotADirectoryError(20, "Not a directory", "cache/x"), 3),
        (sqlite3.DatabaseError("file is not a database"), 3),
    ],
)
def test_failures_end_with_their_code_and_without_traceback(
    failure: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise failure

    monkeypatch.setattr(cli, "app", fail)
    assert cli.run(["train"]) == code
    shown = capsys.readouterr().err
    assert str(failure) in shown
    assert "Traceback" not in shown


def test_a_store_on_a_full_disk_is_not_told_to_be_moved_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(cli, "app", fail)
    assert cli.run(["doctor"]) == 3
    shown = capsys.readouterr().err
    assert "free space" in shown
    assert "move mlruns" not in shown


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ConfigError("bad key")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ConfigError):
        cli.run(["--debug", "train"])


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)
    assert cli.run(["train"]) == 130
