"""What the real worker finds of a drafter before its first step, teacher-forced everywhere."""

from pathlib import Path

from harness.training.messages import Validation, parse_message
from harness.training.plan import TrainPlan, write_job
from harness.training.process import WorkerProcess

_WAIT_S = 1.0


def validate_first(plan: TrainPlan, folder: Path, weights: Path | None = None) -> dict[str, float]:
    """Validation figures of a finetune's starting point; the worker is ended then.

    `weights` replaces what was prepared of the parent, as if something had gone wrong.
    """
    job = write_job(plan, folder)
    if weights is not None:
        (folder / "parent" / "model.safetensors").write_bytes(weights.read_bytes())
    log = folder / "worker.log"
    with WorkerProcess(job, log, {"CUDA_VISIBLE_DEVICES": ""}) as worker:
        while (lines := worker.read_lines(_WAIT_S)) is not None:
            for message in map(parse_message, lines):
                if isinstance(message, Validation):
                    assert message.step == 0, message
                    return message.metrics
    raise AssertionError(log.read_text()[-2000:])
