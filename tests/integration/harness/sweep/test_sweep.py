"""Real sweeps: processes, Optuna's journal, MLflow; killed at any point and gone on with."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.config.load import load_config
from harness.config.train import TrainConfig
from harness.settings import Settings
from harness.sweep.records import Epoch, Trial, TrialState, events_path, read_events
from harness.sweep.session import reopen
from harness.tracking import names
from harness.tracking.records import RunStatus, RunSummary
from harness.tracking.store import open_store
from harness.tracking.waterfall import read_gap

from .conftest import Sweep, run_harness

pytestmark = pytest.mark.timeout(580)
_WAIT_S = 240.0
SLOW = {"epochs": 20, "total_seq_len": 32}
"""21 steps an epoch: some 25 s of training, so that there is something to be killed in."""


def wait_for(look: Callable[[], bool], process: subprocess.Popen[str], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not look():
        if process.poll() is not None or time.monotonic() > deadline:
            output = process.communicate()[0] if process.poll() is not None else "it still runs"
            pytest.fail(f"{what} did not happen: {output}")
        time.sleep(0.2)


def finish(process: subprocess.Popen[str], code: int = 0, *, wait_s: float = _WAIT_S) -> str:
    output, _ = process.communicate(timeout=wait_s)
    assert process.returncode == code, output
    return output


def trials_of(settings: Settings, name: str) -> tuple[Trial, ...]:
    return reopen(name, settings)[0].trials()


def family(settings: Settings) -> dict[int, str]:
    """Every process that works on this project's trials: its command line by its id."""
    found = {}
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        own = str(settings.root_dir) in line
        if own and ("harness.sweep.trial" in line or "harness.training.worker" in line):
            found[process.pid] = line
    return found


def runs_of(settings: Settings, name: str) -> tuple[RunSummary, ...]:
    return open_store(settings).find_runs(tags={names.TAG_SWEEP_NAME: name})


def require_accounted(settings: Settings, name: str, num_trials: int) -> tuple[Trial, ...]:
    trials = trials_of(settings, name)
    assert len(trials) == num_trials
    assert all(trial.is_finished for trial in trials)
    runs = runs_of(settings, name)
    assert not [run for run in runs if run.status is RunStatus.RUNNING]
    by_id = {run.run_id: run for run in runs}
    for trial in trials:
        if trial.state is TrialState.COMPLETE and "duplicate_of" not in trial.facts:
            run = by_id[trial.facts["run_id"]]
            assert run.status is RunStatus.FINISHED
            assert run.tags[names.TAG_TRIAL] == str(trial.number)
            assert run.tags["trial.state"] == "COMPLETE"
    assert not family(settings)
    return trials


def test_a_sweep_from_its_first_trial_to_a_configuration(
    settings: Settings, start: Sweep, tmp_path: Path
) -> None:
    output = finish(start("whole", k=4, fixed={"epochs": 2, "checkpoint_freq": 0.5}))
    assert "3 of 3 trials" in output
    told = read_events(events_path(settings.sweeps_dir / "whole" / "trials" / "0000", 1))
    epochs = [event for event in told if isinstance(event, Epoch)]
    assert [(e.rung, e.part == 1, e.model_id is None) for e in epochs] == [
        (1, False, True), (2, True, False), (3, False, True), (4, True, False),
    ]  # fmt: skip
    assert all(e.acceptance_length for e in epochs)
    assert not list(settings.checkpoints_dir.glob("*/epochs/part-*"))
    trials = require_accounted(settings, "whole", 3)
    assert all(t.values and t.values[0] == t.facts["acceptance_length"] for t in trials)
    assert trials[0].params == {"lr": 3e-3}
    store = open_store(settings)
    for trial in trials:
        best = store.get_checkpoint(trial.facts["model_id"])
        length = best.metrics[names.METRIC_VAL_ACCEPTANCE_LENGTH]
        assert trial.facts["acceptance_length"] == length
        gap = read_gap(store, trial.facts["run_id"])
        assert gap is not None
        assert {entry.k for entry in gap.checkpoints} == {4}
    runs = runs_of(settings, "whole")
    (parent,) = [run for run in runs if run.kind == names.KIND_SWEEP]
    children = [run for run in runs if run.kind == names.KIND_TRAIN]
    assert parent.status is RunStatus.FINISHED
    assert {run.tags[names.TAG_PARENT] for run in children} == {parent.run_id}
    assert store.read_text(parent.run_id, "sweep/history.html")
    best = max(trials, key=lambda trial: (trial.values or (0.0,))[0])
    out = tmp_path / "best.yaml"
    finish(run_harness(settings, "sweep", "export", "whole", "--out", str(out)))
    assert load_config(TrainConfig, out).lr == best.params["lr"]
    assert f"trial {best.number}" in finish(run_harness(settings, "sweep", "best", "whole"))


def test_several_objectives_make_a_front_and_give_nothing_up(
    settings: Settings, start: Sweep
) -> None:
    objectives = [{"metric": "acceptance_length"}, {"metric": "num_parameters"}]
    space = {"draft_vocab_size": {"type": "categorical", "choices": [16, 48]},
             "num_layers": {"type": "int", "low": 1, "high": 2}}  # fmt: skip
    fixed = {"epochs": 2, "num_layers": 1}
    output = finish(
        start("front", "--json", n_trials=3, objectives=objectives, space=space, fixed=fixed)
    )
    trials = require_accounted(settings, "front", 3)
    told, _ = json.JSONDecoder().raw_decode(output[output.index("[\n") :])
    assert [row["number"] for row in told] == [trial.number for trial in trials]
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    pairs = {(t.values[0], t.values[1]) for t in trials if t.values}
    assert len(pairs) > 1

    def is_beaten(length: float, size: float) -> bool:
        return any(a >= length and b <= size and (a, b) != (length, size) for a, b in pairs)

    output = finish(run_harness(settings, "sweep", "best", "front", "--json"))
    found = json.loads(output[output.index("[") :])
    assert {tuple(row["values"]) for row in found} == {p for p in pairs if not is_beaten(*p)}


def test_kill_9_of_the_coordinator_and_the_next_call_goes_on(
    settings: Settings, start: Sweep
) -> None:
    first = start("orphaned", fixed=SLOW)

    def has_epochs() -> bool:
        folder = settings.sweeps_dir / "orphaned" / "trials" / "0000"
        path = folder / "events-1.jsonl"
        return path.is_file() and b'"epoch"' in path.read_bytes()

    wait_for(has_epochs, first, "an epoch of the first trial")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    deadline = time.monotonic() + 60
    while family(settings) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not family(settings), "the trial outlived its coordinator"
    finish(start("orphaned", fixed=SLOW, n_trials=1))
    (trial,) = require_accounted(settings, "orphaned", 1)
    assert trial.facts["attempts"] == 2
    (run,) = [r for r in runs_of(settings, "orphaned") if r.kind == names.KIND_TRAIN]
    assert run.tags[names.TAG_ATTEMPT] == "2", "it went on from its checkpoint"


def test_kill_9_of_a_trial_and_of_its_trainer_in_mid_step(settings: Settings, start: Sweep) -> None:
    process = start("hurt", fixed=SLOW, n_trials=1)
    killed: set[int] = set()
    for module, attempt in (("harness.training.worker", 1), ("harness.sweep.trial", 2)):

        def has_epochs(attempt: int = attempt) -> bool:
            folder = settings.sweeps_dir / "hurt" / "trials" / "0000"
            path = folder / f"events-{attempt}.jsonl"
            return path.is_file() and b'"epoch"' in path.read_bytes()

        wait_for(has_epochs, process, f"an epoch of attempt {attempt}")
        for victim, line in family(settings).items():
            if module in line:
                killed.add(victim)
                os.kill(victim, signal.SIGKILL)
    finish(process)
    assert len(killed) == 2
    (trial,) = require_accounted(settings, "hurt", 1)
    assert trial.state is TrialState.COMPLETE
    assert trial.facts["attempts"] == 3
    assert trial.retry["reason"] == "killed"


def test_an_interrupt_saves_and_stops_and_the_next_call_goes_on(
    settings: Settings, start: Sweep
) -> None:
    process = start("paused", fixed=SLOW, n_trials=1)

    def is_training() -> bool:
        path = settings.sweeps_dir / "paused" / "trials" / "0000" / "events-1.jsonl"
        return path.is_file() and b'"epoch"' in path.read_bytes()

    wait_for(is_training, process, "an epoch")
    finish(run_harness(settings, "sweep", "stop", "paused"))
    finish(process, 130)
    (trial,) = trials_of(settings, "paused")
    assert trial.stage == "stopped"
    assert not [r for r in runs_of(settings, "paused") if r.status is RunStatus.RUNNING]
    finish(start("paused", fixed=SLOW, n_trials=1))
    (trial,) = require_accounted(settings, "paused", 1)
    assert trial.retry == {}
