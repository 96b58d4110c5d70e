from pathlib import Path

from harness.remote.job import read_state
from harness.remote.records import ENDED_NAME, LOG_NAME, OWNER_NAME, Ended, Started
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
