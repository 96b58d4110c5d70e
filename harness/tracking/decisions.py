"""The record of promotions: one JSON line a decision, each holding the hash of the one before.

MLflow moves an alias without a trace. This log says who moved it, when, from what, to what and
why; a line that is edited, lost or put in afterwards breaks the chain and can be named.
"""

import getpass
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.config.load import Frozen
from harness.digests import digest_json
from harness.errors import CheckError

LOG_NAME = "decisions.jsonl"
_START = "0" * 64

Begun = Literal["promoting", "rolling_back", "settling"]
Action = Literal[
    Begun, "promoted", "rolled_back", "settled", "abandoned", "refused", "proposed", "approved"
]
ENDS: dict[str, Action] = {
    "promoting": "promoted",
    "rolling_back": "rolled_back",
    "settling": "settled",
}
"""How a move that was begun is called when it is done."""


class Gate(Frozen):
    """One question of the policy: what it asked, what was found, and whether that passes."""

    name: str
    required: str
    found: str
    is_passed: bool | None
    """None: not asked, since nothing is measured yet."""


class Decision(Frozen):
    """One line of the log. A move is two: `promoting`, then `promoted` or `abandoned`."""

    schema_version: int = 1
    sequence: int
    made_at: str
    who: str
    action: Action
    model: str
    from_version: int | None
    to_version: int | None
    """The champion after it; None: there is none."""
    previous_version: int | None = None
    """The alias `previous` after it."""
    model_id: str
    """Of the checkpoint that it is about; empty where the alias is taken away."""
    run_id: str | None
    """The training."""
    weights_digest: str
    bench_run_id: str | None
    gates: tuple[Gate, ...]
    policy: dict[str, object]
    policy_digest: str
    versions: dict[str, str]
    reason: str | None = None
    approved_by: str | None = None
    previous_hash: str
    hash: str = ""

    @property
    def is_begun(self) -> bool:
        """Whether it is the first half of a move."""
        return self.action in ENDS

    def sealed(self) -> "Decision":
        """The same line with its hash, taken over all else in it."""
        return self.model_copy(update={"hash": _hash_of(self.model_dump(mode="json"))})


class DecisionLog:
    """The log in a store's folder. Writers hold the promotion lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_NAME

    def read(self) -> tuple[Decision, ...]:
        """All decisions, oldest first.

        The beginning of a line whose writer was killed is no decision yet: nothing rests on it.

        Raises:
            CheckError: The chain is broken; the message names the first bad line.
        """
        decisions: list[Decision] = []
        for number, line in enumerate(self._whole().split("\n")[:-1], start=1):
            decisions.append(self._checked(number, line, decisions[-1] if decisions else None))
        return tuple(decisions)

    def append(self, draft: Decision) -> Decision:
        """Writes a decision as the next line, on disk when this returns."""
        before = self.read()
        decision = draft.model_copy(
            update={
                "sequence": len(before) + 1,
                "previous_hash": before[-1].hash if before else _START,
            }
        ).sealed()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self.path, flags, 0o600)
        try:
            os.ftruncate(descriptor, len(self._whole().encode()))
            line = json.dumps(decision.model_dump(mode="json"), ensure_ascii=False) + "\n"
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return decision

    def _whole(self) -> str:
        """The text up to the last end of a line."""
        try:
            text = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
        except UnicodeDecodeError as error:
            number = error.object[: error.start].count(b"\n") + 1
            raise self._broken(number, "it is no text") from error
        return text[: text.rfind("\n") + 1]

    def _checked(self, number: int, line: str, before: Decision | None) -> Decision:
        try:
            raw = json.loads(line)
            decision = Decision.model_validate(raw)
        except (json.JSONDecodeError, ValidationError) as error:
            raise self._broken(number, "it is no decision") from error
        # Over what was written, not over our model of it: a later version may add keys.
        if decision.hash != _hash_of(raw):
            raise self._broken(number, "its content does not match its hash: it was edited")
        if decision.previous_hash != (before.hash if before else _START):
            raise self._broken(number, "it does not follow the line before: one is lost or put in")
        return decision

    def _broken(self, number: int, why: str) -> CheckError:
        return CheckError(
            f"the decision log is broken at line {number} of {self.path}: {why}",
            "restore the log from a backup; promotions are stopped until its chain holds",
        )


def now_text() -> str:
    """UTC time, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def who() -> str:
    """The user and host that decide."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _hash_of(document: dict[str, Any]) -> str:
    return digest_json({key: value for key, value in document.items() if key != "hash"})
