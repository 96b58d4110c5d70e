from pathlib import Path

import pytest

from harness.commands.remote import _exit_code
from harness.errors import WorkError
from harness.remote import job
from harness.remote.job import read_state, stop
from harness.remote.records import ENDED_NAME, LOG_NAME, OWNER_NAME, Ended, JobState, Started
from harness.remote.ship import job_words
from harness.tracking.owner import current_owner

from .test_follow import JOB


def begin(folder: Path, **changes: object) -> None:
    owner = current_owner().model_copy(update=changes)
    (folder / OWNER_NAME).write_text(Started(owner=owner, at="noon").model_dump_json())
    (folder / LOG_NAME).write_bytes(b"abc")


def test_a_job_is_new_then_runs_then_has_ended(tmp_path: Path) -> None:
    assert read_state(tmp_path).state == "new"
    begin(tmp_path)
    running = read_state(tmp_path)
    assert (running.state, running.started_at, running.num_log_bytes) == ("running", "noon", 3)
    (tmp_path / ENDED_NAME).write_text(Ended(code=130, at="later").model_dump_json())
    assert (read_state(tmp_path).state, read_state(tmp_path).code) == ("ended", 130)


def test_a_job_whose_process_left_nothing_is_lost(tmp_path: Path) -> None:
    begin(tmp_path, boot_id="another boot")
    assert (read_state(tmp_path).state, read_state(tmp_path).code) == ("lost", None)


def test_the_hosts_side_runs_from_the_code_that_was_sent() -> None:
    words = job_words(JOB, "status")
    assert words[:2] == ("sh", "-c")
    assert words[4:6] == ("r", "c" * 64)
    assert words[6:] == ("python3", "-P", "-m", "harness.remote.job", "status", "jobs/1-train")


def test_a_job_that_ended_while_it_was_asked_to_stop_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise ProcessLookupError

    begin(tmp_path)
    monkeypatch.setattr(job.os, "kill", kill)
    assert stop(tmp_path) == 0


def test_a_job_that_was_not_started_cannot_be_stopped_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stop(tmp_path) == 1
    assert capsys.readouterr().err == "it was not started\n"


def test_a_job_that_a_signal_ended_has_failed_and_says_so() -> None:
    assert _exit_code(JOB, JobState(state="ended", code=4)) == 4
    with pytest.raises(WorkError, match="ended by SIGKILL on box") as caught:
        _exit_code(JOB, JobState(state="ended", code=-9))
    assert "harness remote resume 1-train" in str(caught.value.hint)
