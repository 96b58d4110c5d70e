"""A measurement of a sweep, on a host for itself: `python -m harness.commands.benchthere`.

The sweep launches it, and reads what it wrote: the run and the result, or what went wrong.
"""

import sys
import uuid
from pathlib import Path
from typing import NamedTuple

from eval.errors import EvalError, MeasurementError
from eval.result import BenchResult
from harness.commands.benching import bench_drafters
from harness.config.bench import BenchConfig
from harness.config.load import Frozen, dump_yaml, load_config
from harness.digests import write_atomic
from harness.errors import CheckError
from harness.launch.ports import Launcher, Task
from harness.launch.tasks import build_task, follow
from harness.render import log, progress
from harness.settings import Settings, load_settings
from harness.tracking.reaping import settle_task
from harness.tracking.store import Store, open_store

_MODULE = "harness.commands.benchthere"
_STOPPED = 130


class Answer(Frozen):
    """What came of a measurement: a result, or an error."""

    run_id: str | None = None
    result: BenchResult | None = None
    error: str | None = None
    is_refusal: bool = False
    """A drafter was not sound, rather than a server not well."""


class MeasuredThere(NamedTuple):
    """A finished measurement and its run."""

    run_id: str
    result: BenchResult


def measure_there(
    config: BenchConfig, settings: Settings, store: Store, launcher: Launcher
) -> MeasuredThere:
    """Runs a bench, or finds the one that was run, as a task that takes a whole host.

    Raises:
        CheckError: A drafter is not sound.
        EvalError: The measurement failed.
        KeyboardInterrupt: It was asked to stop.
    """
    folder = settings.mlruns_dir / "launch" / f"bench-{uuid.uuid4().hex[:12]}"
    folder.mkdir(parents=True)
    config_path, answer_path = folder / "bench.yaml", folder / "answer.json"
    write_atomic(config_path, dump_yaml(config))
    task = build_task(
        config.name or "bench",
        ("-m", _MODULE, str(config_path), str(answer_path)),
        settings,
        folder / "log.txt",
        is_alone=True,
    )
    code = follow(
        launcher,
        task,
        lambda text: log(text.rstrip("\n")),
        lambda lost: _settle(store, lost),
    )
    if code == _STOPPED:
        raise KeyboardInterrupt
    if not answer_path.is_file():
        raise MeasurementError(f"the measurement ended with exit code {code}, see {folder}")
    answer = Answer.model_validate_json(answer_path.read_bytes())
    if answer.run_id is None or answer.result is None:
        message = answer.error or f"nothing was measured, see {folder}"
        raise CheckError(message) if answer.is_refusal else MeasurementError(message)
    return MeasuredThere(answer.run_id, answer.result)


def _settle(store: Store, task: Task) -> Task:
    """What the lost process finished is taken by the next one anyway."""
    settle_task(store, task.id)
    return task


def main(config_path: Path, answer_path: Path) -> int:
    """The side of the host; the exit code is 0 when there is an answer."""
    settings = load_settings()
    config = load_config(BenchConfig, config_path)
    try:
        with progress(is_plain=True) as report:
            store = open_store(settings)
            measured = bench_drafters(config, settings, store, report, is_reusing=True)
        answer = Answer(run_id=measured.run_id, result=measured.result)
    except (EvalError, CheckError) as error:
        answer = Answer(error=error.message, is_refusal=isinstance(error, CheckError))
    except KeyboardInterrupt:
        return _STOPPED
    write_atomic(answer_path, answer.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
