import os
import signal
from pathlib import Path

import pytest

from harness.errors import PrerequisiteError
from harness.launch.ports import Task
from harness.launch.slurm import SlurmLauncher, count_in
from harness.launch.slurm_task import Ended, _Sign, _Taken, run_task
from harness.settings import added_environment, load_settings, set_variables


def test_room_is_counted_by_node_once_whatever_its_gres_is_called() -> None:
    lines = "a|gpu:h200:8(S:0-1)\nb|gpu:8\nb|gpu:8\nc|(null)\nd|shard:4,gpu:a100:3\n"
    assert count_in(lines, 1) == 19
    assert count_in(lines, 4) == 4
    assert count_in(lines, 9) == 0
    assert count_in(lines, 0) == 4
    assert count_in("", 0) == 0


@pytest.mark.parametrize(("uri", "told"), [(None, "sbatch"), ("sqlite:////a.db", "SQLite")])
def test_a_machine_without_sbatch_and_a_store_in_a_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str | None, told: str
) -> None:
    if uri:
        monkeypatch.setattr("harness.launch.slurm.shutil.which", lambda _: "/usr/bin/sbatch")
    with pytest.raises(PrerequisiteError, match=told):
        SlurmLauncher("auto", load_settings(tmp_path))


def test_a_host_with_other_code_runs_nothing(tmp_path: Path) -> None:
    task = Task(
        name="a", arguments=("-c", ""), folder=tmp_path, code="0" * 64, log_path=tmp_path / "log"
    )
    said = run_task(task.model_dump_json(), tmp_path, tmp_path / "sign")
    ended = Ended.model_validate_json(said)
    assert ended.code == 1
    assert "expected " + "0" * 64 in (ended.refusal or "")


def test_a_launcher_whose_file_rests_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("harness.launch.slurm_task.time.monotonic", lambda: now)
    path = tmp_path / "sign"
    sign = _Sign(path, 60.0)
    for number in range(5):
        path.write_text(str(number))
        now += 50.0
        assert not sign.is_gone()
    now += 50.0
    assert not sign.is_gone()
    now += 11.0
    assert sign.is_gone()


def test_slurms_signal_is_noted() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    try:
        taken = _Taken()
        assert not taken.is_so
        os.kill(os.getpid(), signal.SIGUSR2)
        assert taken.is_so
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_variables_that_are_added_are_taken_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_ONE", "1")
    with added_environment({"HARNESS_ONE": "2", "HARNESS_TWO": "3"}):
        assert set_variables(["HARNESS_ONE", "HARNESS_TWO"]) == {
            "HARNESS_ONE": "2",
            "HARNESS_TWO": "3",
        }
    assert set_variables(["HARNESS_ONE", "HARNESS_TWO"]) == {"HARNESS_ONE": "1"}
