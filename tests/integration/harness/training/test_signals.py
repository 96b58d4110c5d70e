"""A signal that reaches a training while it logs a line, where exceptions are swallowed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.settings import Settings
from harness.training.folders import list_epochs
from harness.training.messages import EXIT_CODES, TrainJob
from harness.training.run import TrainRun

_SCRIPT = """
import io, logging, os, signal, sys

class Screen(io.StringIO):
    def write(self, text):
        if sys.argv[2] in text:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)

logging.basicConfig(stream=Screen(), level=logging.INFO)
from harness.training.worker.session import run_job
sys.exit(run_job(sys.argv[1], os.open(os.devnull, os.O_WRONLY)))
"""


@pytest.mark.parametrize("line", ["Saving checkpoint", "Validation epoch 1/9 started"])
def test_a_signal_in_the_middle_of_a_line_stops_the_training(
    trained: TrainRun, settings: Settings, tmp_path: Path, line: str
) -> None:
    before = settings.checkpoints_dir / trained.run_id / "job.json"
    job = TrainJob.model_validate_json(before.read_bytes())
    config = job.config.model_copy(update={"epochs": 9})
    job = job.model_copy(update={"save_dir": tmp_path / "epochs", "config": config})
    path = tmp_path / "job.json"
    path.write_text(job.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(path), line],
        env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_CODES["stopped"], done.stderr
    (last,) = list_epochs(job.save_dir)
    assert last.epoch <= 1
    assert last.is_resumable
