"""One attempt of a training: the child runs, we listen, and decide nothing but when to stop."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.errors import TrackingError
from harness.tracking.records import RunStatus
from harness.training.messages import parse_message
from harness.training.outcome import Outcome, judge
from harness.training.process import Interrupts, ResourceMeter, WorkerProcess
from harness.training.recorder import Recorder

LOG_NAME = "worker.log"
_LISTEN_S = 1.0
_SAMPLE_S = 10.0
_STOP_TIMEOUT_S = 120.0


class Attempt(NamedTuple):
    """How an attempt ended."""

    outcome: Outcome
    is_too_long: bool
    """The child was stopped because its estimate passed the bound."""


def supervise(
    job_path: Path,
    recorder: Recorder,
    environment: Mapping[str, str],
    *,
    longest_s: float | None = None,
    nproc: int = 1,
) -> Attempt:
    """Runs a job to its end, whatever that is; no process is left behind.

    The first wish to stop (see `Interrupts`) asks the child to save first; the second ends it, and
    so do two minutes in which it has not stopped after it was asked, or after its last word.

    Args:
        job_path: The TrainJob; the log goes beside it.
        recorder: Takes the child's messages.
        environment: Variables for the child on top of ours.
        longest_s: Stop when the child estimates a longer training than this.
        nproc: Processes that train together.
    """
    log_path = job_path.parent / LOG_NAME
    began = time.monotonic()
    with (
        _kept_curves(recorder),
        Interrupts() as interrupts,
        WorkerProcess(job_path, log_path, environment, nproc) as worker,
    ):
        meter = ResourceMeter(worker.pid)
        num_asked, next_sample, must_stop_by = 0, began, math.inf
        while (lines := worker.read_lines(0.0 if recorder.work() else _LISTEN_S)) is not None:
            for line in lines:
                recorder.take(parse_message(line))
            if longest_s and recorder.estimate and recorder.estimate.total_s > longest_s:
                recorder.finish()
                recorder.flush()
                return Attempt(Outcome(RunStatus.KILLED, "to be tested first"), is_too_long=True)
            if interrupts.count > num_asked:
                num_asked = interrupts.count
                worker.interrupt() if num_asked == 1 else worker.kill()
                must_stop_by = time.monotonic() + _STOP_TIMEOUT_S
            if time.monotonic() >= must_stop_by:
                worker.kill()
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + _SAMPLE_S
                recorder.add_resources(meter.sample(), time.monotonic() - began)
            recorder.flush(is_due=True)
        while recorder.work():
            if interrupts.count > num_asked:
                # What is not recorded now will be when the training is resumed.
                raise KeyboardInterrupt
        outcome = _see_end(worker, recorder, interrupts, num_asked, log_path)
    recorder.log_summary(time.monotonic() - began)
    return Attempt(outcome, is_too_long=False)


def _see_end(
    worker: WorkerProcess,
    recorder: Recorder,
    interrupts: Interrupts,
    num_asked: int,
    log_path: Path,
) -> Outcome:
    """How a child ends that has nothing more to say, and nothing to save."""
    end_by, is_hung = time.monotonic() + _STOP_TIMEOUT_S, False
    while (code := worker.wait(_LISTEN_S)) is None:
        is_hung = time.monotonic() >= end_by
        if is_hung or interrupts.count > num_asked:
            worker.kill()
    if is_hung and not interrupts.count:
        why = f"the worker did not end within {_STOP_TIMEOUT_S:.0f} s of its last word"
        return Outcome(RunStatus.FAILED, why)
    return judge(code, recorder.ended, interrupts.count, log_path)


@contextlib.contextmanager
def _kept_curves(recorder: Recorder) -> Iterator[None]:
    """Writes what has gathered of an attempt that an error ends: it shows how it came to it."""
    try:
        yield
    except TrackingError:
        raise  # the store is away that would take them
    except BaseException:
        with contextlib.suppress(TrackingError):  # the first error is the one to tell
            recorder.flush()
        raise
