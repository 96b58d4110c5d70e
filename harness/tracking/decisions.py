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
from typing import Literal

from pydantic import ValidationError

from harness.config.load import Frozen
from harness.digests import digest_json
from harness.errors import CheckError

LOG_NAME = "decisions.jsonl"
_START = "0" * 64

Action = Literal["refused", "promoting", "promoted", "abandoned"]


class Gate(Frozen):
    """One question of the policy: what it asked, what was found, and whether that passes."""

    name: str
    required: str
    found: str
    is_passed: bool


class Decision(Frozen):
    """One line of the log. A promotion is two: `promoting`, then `promoted` or `abandoned`."""

    schema_version: int = 1
    sequence: int
    made_at: str
    who: str
    action: Action
    model: str
    from_version: int | None
    to_version: int | None
    model_id: str
    run_id: str | None
    weights_digest: str
    bench_run_id: str | None
    gates: tuple[Gate, ...]
    policy: dict[str, object]
    policy_digest: str
    versions: dict[str, str]
    previous_hash: str
    hash: str = ""

    def sealed(self) -> "Decision":
        """The same line with its hash, taken over all else in it."""
        return self.model_copy(update={"hash": self.expected_hash()})

    def expected_hash(self) -> str:
        """What `hash` must be."""
        return digest_json(self.model_dump(mode="json", exclude={"hash"}))


class DecisionLog:
    """The log in a store's folder. Writers hold the promotion lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_NAME

    def read(self) -> tuple[Decision, ...]:
        """All decisions, oldest first.

        Raises:
            CheckError: The chain is broken; the message names the first bad line.
        """
        if not self.path.is_file():
            return ()
        decisions: list[Decision] = []
        for number, line in enumerate(self.path.read_text("utf-8").splitlines(), start=1):
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
            line = json.dumps(decision.model_dump(mode="json"), ensure_ascii=False) + "\n"
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return decision

    def _checked(self, number: int, line: str, before: Decision | None) -> Decision:
        try:
            decision = Decision.model_validate_json(line)
        except ValidationError as error:
            raise self._broken(number, "it is no decision") from error
        if decision.hash != decision.expected_hash():
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
