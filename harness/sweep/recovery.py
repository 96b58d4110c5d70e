"""What a coordinator does first: takes over processes, trials and runs that another one left.

Each trial that is still RUNNING in the study is told, given up, failed or put back into the queue,
by what its process last said.
"""

from harness.sweep.endings import Endings
from harness.sweep.ledger import Ledger
from harness.sweep.ports import STOP_PATIENCE_S, Place, Ports
from harness.sweep.records import (
    Epoch,
    Event,
    Failed,
    Reason,
    RunOpened,
    Stopped,
    Trained,
    Trial,
    TrialState,
    events_path,
    read_events,
)
from harness.sweep.study import SweepStudy


def recover(
    study: SweepStudy, ledger: Ledger, place: Place, ports: Ports, endings: Endings
) -> list[int]:
    """Goes on with everything that was under way.

    Returns:
        Numbers of trials to be started again, in their order.
    """
    unfinished = [t for t in study.trials() if t.state is TrialState.RUNNING]
    for trial in unfinished:
        ports.end_leftover(place.trial_dir(trial.number), STOP_PATIENCE_S)
        if "run_id" in trial.facts:
            ledger.see_off(trial.facts["run_id"], STOP_PATIENCE_S, ports.sleep)
    ledger.close_abandoned("its process ended without closing it")
    runs = ledger.runs_of_trials() if unfinished else {}
    queue: list[int] = []
    for trial in unfinished:
        if "stage" not in trial.facts:
            study.ask_again(trial.number)
        if trial.number in runs and "run_id" not in trial.facts:
            study.note(trial.number, run_id=runs[trial.number][0].run_id)
        if _goes_on(study.trial(trial.number), study, place, endings):
            queue.append(trial.number)
    return queue


def _goes_on(trial: Trial, study: SweepStudy, place: Place, endings: Endings) -> bool:
    """Whether a trial is to be started again; all others are brought to their end."""
    if endings.resume_told(trial):
        return False
    if trial.num_attempts == 0:
        return not endings.end_early(trial)
    last: Event | None = None
    for event in read_events(events_path(place.trial_dir(trial.number), trial.num_attempts)):
        if isinstance(event, RunOpened):
            study.note(trial.number, run_id=event.run_id)
        elif isinstance(event, Epoch) and endings.take_epoch(trial.number, event):
            endings.prune(trial.number)
            return False
        last = event
    if isinstance(last, Trained):
        endings.note_trained(trial.number, last)
        endings.settle(study.trial(trial.number))
        return False
    if isinstance(last, Stopped) or trial.stage == "stopped":
        return True
    reason, detail = Reason.KILLED, "its coordinator was gone, and it ended without a word"
    if isinstance(last, Failed):
        reason, detail = last.reason, last.detail
    return endings.retry_or_fail(trial.number, reason, detail)
