from pathlib import Path

import pytest

from harness.tracking.records import RunStatus
from harness.training.messages import EXIT_CODES, Ended, Outcome
from harness.training.outcome import judge


def ended(outcome: Outcome, detail: str | None = None) -> Ended:
    return Ended(outcome=outcome, step=7, detail=detail)


@pytest.mark.parametrize(
    ("returncode", "last", "num_interrupts", "status", "reason"),
    [
        (0, ended("finished"), 0, RunStatus.FINISHED, None),
        (0, ended("finished"), 1, RunStatus.FINISHED, None),
        (130, ended("stopped"), 1, RunStatus.KILLED, "interrupted after step 7"),
        (130, ended("stopped"), 0, RunStatus.KILLED, "interrupted after step 7"),
        (-9, None, 2, RunStatus.KILLED, "interrupted"),
        (3, ended("diverged", "the loss is nan"), 0, RunStatus.FAILED, "diverged: the loss is nan"),
        (2, ended("refused", "no rows"), 0, RunStatus.FAILED, "refused: no rows"),
        (-15, None, 0, RunStatus.FAILED, "the worker was killed by SIGTERM"),
        (1, None, 0, RunStatus.FAILED, "the worker exited with 1: ValueError: no"),
        (0, None, 0, RunStatus.FAILED, "the worker exited with 0: ValueError: no"),
        (1, ended("finished"), 0, RunStatus.FAILED, "the worker exited with 1: ValueError: no"),
    ],
)
def test_the_final_status_follows_from_how_the_child_ended(
    tmp_path: Path,
    *,
    returncode: int,
    last: Ended | None,
    num_interrupts: int,
    status: RunStatus,
    reason: str | None,
) -> None:
    log_path = tmp_path / "worker.log"
    log_path.write_text("Traceback\nValueError: no\n\n")
    assert judge(returncode, last, num_interrupts, log_path) == (status, reason)


def test_a_sigkill_names_memory_as_the_likely_cause(tmp_path: Path) -> None:
    status, reason = judge(-9, None, 0, tmp_path / "none")
    assert status is RunStatus.FAILED
    assert "SIGKILL" in (reason or "")
    assert "memory" in (reason or "")


def test_a_child_without_a_word_is_said_to_have_printed_nothing(tmp_path: Path) -> None:
    assert judge(1, None, 0, tmp_path / "none").reason == (
        "the worker exited with 1: it printed nothing"
    )


def test_every_outcome_has_its_own_exit_code() -> None:
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES) == 4


TORCHRUN = """
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  traceback : {other}
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_12:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 77)
  error_file: <N/A>
  traceback : {said}
============================================================
"""


KILLED, ENDED = (
    f"Signal {n} ({name}) received by PID 77" for n, name in ((9, "SIGKILL"), (15, "SIGTERM"))
)
LOST_PEER = "RuntimeError: Connection closed by peer"


@pytest.mark.parametrize(
    ("other", "said", "reason"),
    [
        (ENDED, KILLED, "the worker was killed by SIGKILL, as Linux"),
        (KILLED, LOST_PEER, "the worker was killed by SIGKILL"),
        (
            ENDED,
            "Traceback:\n  File x\nRuntimeError: no room",
            "exited with 1: RuntimeError: no room",
        ),
    ],
)
def test_of_a_gang_the_process_that_failed_for_itself_is_told(
    tmp_path: Path, other: str, said: str, reason: str
) -> None:
    log = tmp_path / "worker.log"
    earlier = TORCHRUN.format(
        other="<NO_OTHER_FAILURES>", code=1, said="Signal 11 (SIGSEGV) received by PID 3"
    )
    log.write_text(earlier + TORCHRUN.format(other=other, code=1, said=said))
    outcome = judge(1, None, 0, log)
    assert outcome.status is RunStatus.FAILED
    assert reason in (outcome.reason or "")
