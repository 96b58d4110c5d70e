import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.commands.remote import _exit_code
from harness.drafter.gpus import Gpu
from harness.errors import WorkError
from harness.remote import job
from harness.remote.job import read_state, stop
from harness.remote.records import (
    ENDED_NAME,
    JOB_NAME,
    LOG_NAME,
    OWNER_NAME,
    Ended,
    JobState,
    Started,
)
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


class _Told(io.BytesIO):
    """The pipe to a job, which has begun when it was told all."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.text = folder, b""

    def close(self) -> None:
        self.text = self.getvalue()
        begin(self.folder)
        super().close()


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Told:
    """A host of three GPUs, the first of which another uses."""
    gpus = [
        Gpu(index=str(i), uuid=f"GPU-{i}", name="H200", free_bytes=free, total_bytes=100)
        for i, free in enumerate((10, 90, 95))
    ]
    found = _Told(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(job, "read_gpus", lambda: gpus)
    monkeypatch.setattr(job, "code_digest", lambda: JOB.code)
    monkeypatch.setattr(job.subprocess, "Popen", lambda *_, **__: SimpleNamespace(stdin=found))
    return found


def start_job(folder: Path, monkeypatch: pytest.MonkeyPatch, num_gpus: int, told: str) -> int:
    text = JOB.model_copy(update={"num_gpus": num_gpus}).model_dump_json()
    (folder / JOB_NAME).write_text(text)
    stdin = SimpleNamespace(buffer=io.BytesIO(told.encode()))
    monkeypatch.setattr(job.sys, "stdin", stdin)
    return job.start(folder, 1)


@pytest.mark.parametrize(
    ("num_gpus", "told", "visible"),
    [(1, "", "1"), (2, "", "1,2"), (1, '{"CUDA_VISIBLE_DEVICES": "0"}', "0"), (0, "", None)],
)
def test_a_job_sees_as_many_free_gpus_as_it_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: _Told, *,
    num_gpus: int, told: str, visible: str | None,
) -> None:  # fmt: skip
    assert start_job(tmp_path, monkeypatch, num_gpus, told) == 0
    assert json.loads(pipe.text).get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.usefixtures("pipe")
def test_a_job_whose_gpus_were_taken_meanwhile_is_not_started_and_can_be_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start_job(tmp_path, monkeypatch, 3, "") == 1
    assert "expected 3 free GPUs, found 2" in capsys.readouterr().err
    assert read_state(tmp_path) == JobState(state="new")
    assert start_job(tmp_path, monkeypatch, 2, "") == 0
