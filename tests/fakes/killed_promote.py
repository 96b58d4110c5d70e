"""`harness promote` killed with SIGKILL before each of its writes, one after the other.

    python killed_promote.py MLRUNS ARGUMENTS...

Imports once, then forks a process for each write: a copy of the folder MLRUNS is put back, the
command runs, and dies before its n-th write, until it has no n-th. A write is a transaction that
changes something, a folder or file under MLRUNS that is made, opened for writing, cut or renamed,
and a line of the decision log, of which half is written, too. Prints a JSON document a case.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - imported once for all
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.orm import configure_mappers

import harness.commands.promote
import harness.commands.registry  # noqa: F401 - imported once for all
from harness.cli import run
from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.decisions import DecisionLog
from harness.tracking.reaping import open_runs
from harness.tracking.resolve import require_unchanged, resolve_drafter
from harness.tracking.store import open_store

_CHANGES = ("INSERT", "UPDATE", "DELETE")
_OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_MOST = 200


class Countdown:
    """Counts the writes of this process and kills it before the n-th."""

    def __init__(self, n: int, folder: Path, out: int) -> None:
        self._left = n
        self._folder = str(folder)
        self._out = out
        self._changed: dict[int, str] = {}
        self._write = os.write

    def install(self) -> None:
        """Watches the database, the files and the log from now on."""
        event.listen(Engine, "before_cursor_execute", self._on_statement)
        event.listen(Engine, "commit", self._on_commit)
        sys.addaudithook(self._on_audit)
        sync = os.fsync
        os.fsync = lambda fd: (self._before("fsync"), sync(fd))[1]  # type: ignore[assignment]
        os.write = self._on_write

    def _before(self, what: str, last_words: Callable[[], object] = lambda: None) -> None:
        self._left -= 1
        if self._left == 0:
            last_words()
            self._write(self._out, what.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def _on_statement(self, connection: Any, *rest: Any) -> None:
        statement = rest[1]
        if statement.startswith(_CHANGES):
            self._changed[id(connection)] = " ".join(statement.split()[:3])

    def _on_commit(self, connection: Any) -> None:
        statement = self._changed.pop(id(connection), None)
        if statement:
            self._before(f"commit of {statement}")

    def _on_audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        place = str(arguments[0]) if arguments else ""
        if name == "os.truncate":
            self._before(name)
        if not place.startswith(self._folder) or place.endswith(".lock"):
            return
        is_write = name == "open" and arguments[2] & _OPENED_TO_WRITE
        is_new = name == "os.mkdir" and not Path(place).exists()
        if is_write or is_new or name == "os.rename":
            self._before(f"{name} {Path(place).name}")

    def _on_write(self, fd: int, text: bytes) -> int:
        self._before("line of the log")
        self._before("second half of the line", lambda: self._write(fd, text[: len(text) // 2]))
        return self._write(fd, text)


def main(mlruns: Path, arguments: list[str]) -> None:
    """One case after the other, until the command outlives its last write."""
    configure_mappers()
    settings = load_settings()
    with tempfile.TemporaryDirectory() as scratch:
        before = Path(shutil.copytree(mlruns, Path(scratch) / "before"))
        for n in range(1, _MOST):
            shutil.rmtree(mlruns)
            shutil.copytree(before, mlruns)
            write, status = _in_child(lambda out, n=n: _killed(n, mlruns, arguments, out))
            if not os.WIFSIGNALED(status):
                return
            seen, _ = _in_child(lambda out: os.write(out, _look(settings, arguments).encode()))
            sys.stdout.write(json.dumps({"before": write, **json.loads(seen)}) + "\n")


def _killed(n: int, mlruns: Path, arguments: list[str], out: int) -> None:
    Countdown(n, mlruns, out).install()
    _quietly(arguments)


def _look(settings: Settings, arguments: list[str]) -> str:
    """What stands after the kill, and what the same command makes of it."""
    store, log = open_store(settings), DecisionLog(settings.mlruns_dir)
    aliases = store.registry.aliases("tiny")
    champion = resolve_drafter(f"models:/tiny/{aliases['champion']}", settings, store)
    found = {
        "champion": aliases["champion"],
        "digest": require_unchanged(champion, store),
        "actions": [decision.action for decision in log.read()],
        "again": _quietly(arguments),
        "aliases": store.registry.aliases("tiny"),
        "actions_then": [decision.action for decision in log.read()],
        "states": [v.tags.get(names.TAG_STATE) for v in store.registry.versions("tiny")],
        "running": [left.name for left in open_runs(store)],
        "check": _quietly(["registry", "check"]),
    }
    return json.dumps(found)


def _quietly(arguments: list[str]) -> object:
    """The exit code of a command line; with what it said, where that is not 0."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = run(arguments)
    return code and f"{code}: {said.getvalue()}"


def _in_child(work: Callable[[int], object]) -> tuple[str, int]:
    """Runs it in a fork; returns what it wrote to its pipe, and its status."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            work(writing)
        except BaseException:  # noqa: BLE001 - the parent's code is not for the child to run
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    return said, os.waitpid(child, 0)[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
