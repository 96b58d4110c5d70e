"""Puts study and MLflow in agreement again after a crash between two writes. The study is right."""

from harness.errors import ConfigError
from harness.sweep.ledger import Ledger
from harness.sweep.ports import Place
from harness.sweep.process import read_owner
from harness.sweep.records import TrialState
from harness.sweep.study import ATTR_PARENT_RUN, SweepStudy
from harness.tracking import names
from harness.tracking.owner import is_alive
from harness.tracking.reaping import reap
from harness.tracking.records import RunStatus
from harness.tracking.store import Store

_ORPHAN = "orphan"


def repair(study: SweepStudy, store: Store, place: Place) -> tuple[str, ...]:
    """Mends what can be mended without running anything; call it while nobody coordinates.

    Returns:
        What was found and done, a line each; empty when all was right.
    """
    ledger = Ledger(store, study)
    lines = _mend_parent(study, store)
    for trial in study.trials():
        owner = read_owner(place.trial_dir(trial.number))
        if trial.state is TrialState.RUNNING and owner and is_alive(owner):
            lines.append(f"trial {trial.number}: process {owner.pid} still runs; it is stopping")
    closed = ledger.close_abandoned("its process ended without closing it")
    closed += tuple(run.run_id for run in reap(store))  # measurements among them
    lines += [f"run {run_id}: closed, its process was gone" for run_id in closed]
    lines += _mend_trials(study, store, ledger)
    ledger.sync(study.trials(), is_last=True)
    unfinished = [t.number for t in study.trials() if t.state is TrialState.RUNNING]
    if unfinished:
        numbers = ", ".join(map(str, unfinished))
        lines.append(f"trials {numbers} are unfinished: the same harness sweep goes on with them")
    return tuple(lines)


def _mend_parent(study: SweepStudy, store: Store) -> list[str]:
    """The sweep's run: noted in the study, there, and not RUNNING for ever."""
    known = study.attr(ATTR_PARENT_RUN)
    found = store.find_runs(kind=names.KIND_SWEEP, tags={names.TAG_SWEEP_ID: study.sweep_id})
    lines = []
    if known is None and found:
        known = found[-1].run_id
        study.set_attr(ATTR_PARENT_RUN, known)
        lines.append(f"run {known}: is the sweep's, the study did not know it")
    for run in found:
        if run.run_id != known:
            lines.append(f"run {run.run_id}: a second one of the sweep, marked as such")
            store.attach_run(run.run_id).set_tags({names.TAG_FAILURE: f"replaced by {known}"})
        if run.status is RunStatus.RUNNING:
            store.attach_run(run.run_id).finish(RunStatus.KILLED, "its coordinator was gone")
            lines.append(f"run {run.run_id}: closed, its coordinator was gone")
    return lines


def _mend_trials(study: SweepStudy, store: Store, ledger: Ledger) -> list[str]:
    """Runs that the study does not know, and trials that do not know their run."""
    lines = []
    trials = study.trials()
    for number, runs in sorted(ledger.runs_of_trials().items()):
        if number >= len(trials):
            for run in runs:
                tag = names.TAG_TRIAL_FACT.format(key="state")
                if run.tags.get(tag) != _ORPHAN:
                    store.attach_run(run.run_id).set_tags({tag: _ORPHAN})
                    lines.append(f"run {run.run_id}: the study has no trial {number}, marked")
            continue
        trial = trials[number]
        if "run_id" not in trial.facts and trial.state is TrialState.RUNNING:
            study.note(number, run_id=runs[0].run_id)
            lines.append(f"trial {number}: its run is {runs[0].run_id}")
    for trial in trials:
        run_id = trial.facts.get("run_id")
        if run_id is None:
            continue
        try:
            tags = store.get_run(run_id).tags
        except ConfigError:
            lines.append(f"trial {trial.number}: its run {run_id} was deleted from the store")
            continue
        if tags.get(names.TAG_TRIAL_FACT.format(key="state")) != trial.state.value:
            lines.append(f"trial {trial.number}: {trial.state.value}, its run did not say so")
    return lines
