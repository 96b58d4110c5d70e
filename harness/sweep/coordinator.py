"""The one process that owns a sweep: hands out points, listens to trials, gives up, tries again.

Every step is written to the study before the next one is taken, and each can be taken twice, so
that a coordinator that was killed anywhere leaves trials that `recovery` can go on with. A trial is
told to Optuna once: what is told already is never told again.
"""

from harness.errors import PrerequisiteError
from harness.sweep.endings import Endings
from harness.sweep.leases import Heartbeat
from harness.sweep.ledger import HOST_LOST, Ledger
from harness.sweep.ports import STOP_PATIENCE_S, Pause, Place, Ports, Running
from harness.sweep.records import (
    Epoch,
    Event,
    Failed,
    Reason,
    RunOpened,
    Stopped,
    Trained,
    Trial,
    TrialSpec,
    events_path,
    read_events,
)
from harness.sweep.recovery import recover
from harness.sweep.slots import Slot
from harness.sweep.space import Point
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import count_failures, has_next

_POLL_S = 0.2
_LOOK_S = 1.0
"""Between looks of the ledger and the screen at trials of which nothing was heard."""
_UNCLOSED = "its process ended without closing it"
_LOST_PATIENCE_S = 45.0
"""For a host that is cut off, not dead: it stops a trial that nobody looks at after 20 s."""
_NO_ROOM_S = 10.0
"""Between looks for room for the next trial, while others run that may give some back."""


class Coordinator:
    """Runs the search of one sweep; `search` may be called again after a pause.

    Args:
        study: The study.
        ledger: MLflow's side, its run open.
        place: Where the sweep lives and runs.
        ports: The world.
    """

    def __init__(self, study: SweepStudy, ledger: Ledger, place: Place, ports: Ports) -> None:
        self.endings = Endings(study)
        self._study, self._ledger, self._place, self._ports = study, ledger, place, ports
        self._config = study.config
        self._free = list(place.slots)
        self._running: list[Running] = []
        self._queue: list[int] = []
        self._heartbeat = Heartbeat(study, ports.clock, ports.sleep)
        self._began = self._next_look = self._next_start = ports.clock()
        self._stop_at: float | None = None
        self._num_asked_to_stop = 0

    def recover(self) -> None:
        """Takes over what another coordinator left: its processes, its trials, its runs."""
        self._heartbeat.take_over()
        self._heartbeat.beat()
        self._queue += recover(self._study, self._ledger, self._place, self._ports, self.endings)

    def search(self) -> Pause:
        """Runs trials until there is nothing left to do here, or a reason to stop."""
        while True:
            self._heartbeat.beat()
            self._obey_interrupts()
            is_news = sum(self._listen(running) for running in list(self._running)) > 0
            trials = self._study.trials()
            is_news |= self.endings.settle_twins(trials)
            if is_news:
                trials = self._study.trials()
            pause = self._reason_to_pause(trials)
            if pause is None and self._free and self._ports.clock() >= self._next_start:
                self._start_next(trials)
                is_news, trials = True, self._study.trials()
            self._look(trials, is_due=is_news)
            if pause is not None and not self._running:
                return pause
            is_waiting = self._running or self._ports.clock() < self._next_start
            self._ports.sleep(_POLL_S if is_waiting else 0.0)

    def close(self) -> None:
        """Stops what still runs, checkpoints saved, and gives the sweep back."""
        self._num_asked_to_stop = max(self._num_asked_to_stop, 1)
        for running in self._running:
            running.worker.interrupt()
        deadline = self._ports.clock() + STOP_PATIENCE_S
        while self._running:
            if self._ports.clock() >= deadline:
                for running in self._running:
                    running.worker.kill()
            for running in list(self._running):
                self._listen(running)
            self._ports.sleep(_POLL_S)
        self._heartbeat.end()

    def _look(self, trials: tuple[Trial, ...], *, is_due: bool) -> None:
        if is_due or self._ports.clock() >= self._next_look:
            self._next_look = self._ports.clock() + _LOOK_S
            self._ledger.sync(trials)
            self._ports.watch(trials)

    def _reason_to_pause(self, trials: tuple[Trial, ...]) -> Pause | None:
        """Why no further trial is started; running ones go on unless they were interrupted."""
        if self._ports.num_interrupts():
            return Pause.STOPPED
        if count_failures(trials) >= self._config.max_failures:
            return Pause.FAILURES
        if self.endings.lacking_costs(trials):
            return Pause.COSTS
        limit = self._config.timeout_s
        if limit is not None and self._ports.clock() - self._began >= limit:
            return Pause.TIMEOUT
        return None if self._queue or has_next(self._config, trials) else Pause.DONE

    def _start_next(self, trials: tuple[Trial, ...]) -> None:
        """Starts a trial that waits to be tried again, else the next point."""
        if self._queue:
            self._start(self._study.trial(self._queue.pop(0)))
        elif has_next(self._config, trials):
            trial = self._study.ask()
            if not self.endings.end_early(trial):
                self._start(trial)

    def _find_room(self, point: Point) -> Slot | None:
        """A free slot where the point finds disk and memory; None while running trials hold them.

        Raises:
            PrerequisiteError: There is no room, and nothing runs that would make any.
        """
        for slot in self._free:
            num_beside = sum(r.slot.gpu == slot.gpu for r in self._running)
            points = [point, *(r.point for r in self._running)]
            try:
                self._ports.require_room(points, slot, num_beside)
            except PrerequisiteError:
                if slot is self._free[-1] and not self._running:
                    raise
            else:
                return slot
        self._next_start = self._ports.clock() + _NO_ROOM_S
        return None

    def _start(self, trial: Trial) -> None:
        point = self._study.space.resolve(trial.params)
        slot = self._find_room(point)
        if slot is None:
            self._queue.insert(0, trial.number)
            return
        train = point.train.model_copy(
            update={
                "name": f"{self._config.name} t{trial.number:03d}",
                "total_seq_len": trial.retry.get("total_seq_len", point.train.total_seq_len),
                "replay_k": point.k,
            }
        )
        attempt = trial.num_attempts + 1
        self._study.note(trial.number, stage="training", slot=slot.name, attempts=attempt)
        spec = TrialSpec(
            sweep_id=self._study.sweep_id,
            sweep_name=self._config.name,
            number=trial.number,
            attempt=attempt,
            train=train,
            settings=self._place.settings,
            parent_run_id=self._ledger.parent_run_id,
            run_id=trial.facts.get("run_id"),
        )
        folder = self._place.trial_dir(trial.number)
        folder.mkdir(parents=True, exist_ok=True)
        worker = self._ports.launch(spec, folder, slot.environment)
        self._free.remove(slot)
        self._running.append(Running(spec, point, worker, slot))

    def _listen(self, running: Running) -> bool:
        """Takes what a process said, and its end when it came; whether there was anything."""
        code = running.worker.poll()  # before its file is read: what it wrote is then all there
        path = events_path(self._place.trial_dir(running.number), running.attempt)
        events = read_events(path, running.num_events)
        running.num_events += len(events)
        for event in events:
            self._take(running, event)
        if code is not None:
            running.worker.close()
            self._running.remove(running)
            self._free.append(running.slot)
            self._take_end(running, code)
        return bool(events) or code is not None

    def _take(self, running: Running, event: Event) -> None:
        if running.is_given_up:
            return
        if isinstance(event, RunOpened):
            self._study.note(running.number, run_id=event.run_id)
        elif isinstance(event, Epoch):
            if self.endings.take_epoch(running.number, event):
                running.is_given_up = True
                running.worker.interrupt()
        else:
            running.last = event

    def _take_end(self, running: Running, code: int) -> None:
        """What the end of a process means for its trial."""
        number, last = running.number, running.last
        if running.worker.is_lost:
            self._give_up_host(running)
        elif code < 0 or isinstance(last, Failed):
            self._ledger.close_abandoned(_UNCLOSED)
            if run_id := self._study.trial(number).facts.get("run_id"):
                self._ledger.close_lost(run_id, _UNCLOSED)
        if running.is_given_up:
            self.endings.prune(number)
        elif isinstance(last, Trained):
            self.endings.note_trained(number, last)
            self.endings.settle(self._study.trial(number))
        else:
            reason, detail = running.causes.of_exit(code)
            if running.worker.is_lost:
                reason, detail = Reason.LOST, HOST_LOST
            elif isinstance(last, Failed):
                reason, detail = last.reason, last.detail
            is_asked = self._num_asked_to_stop > 0
            is_cut_off = reason in {Reason.KILLED, Reason.LOST}
            if is_asked and (isinstance(last, Stopped) or is_cut_off):
                self._study.note(number, stage="stopped")
            elif self.endings.retry_or_fail(number, reason, detail):
                self._queue.append(number)

    def _give_up_host(self, running: Running) -> None:
        """Nobody works on the trial's run any more: it can be gone on with somewhere else."""
        folder = self._place.trial_dir(running.number)
        self._ports.end_leftover(folder, STOP_PATIENCE_S)
        run_id = self._study.trial(running.number).facts.get("run_id")
        if run_id is not None:
            self._ledger.see_off(run_id, _LOST_PATIENCE_S, self._ports.sleep)
            self._ledger.close_lost(run_id, HOST_LOST)

    def _obey_interrupts(self) -> None:
        """Once: trials save and stop. Twice, or when they do not: they are killed."""
        count, now = self._ports.num_interrupts(), self._ports.clock()
        if count > self._num_asked_to_stop:
            is_first, self._num_asked_to_stop = self._num_asked_to_stop == 0, count
            self._stop_at = now + STOP_PATIENCE_S
            for running in self._running:
                running.worker.interrupt() if is_first else running.worker.kill()
        if self._stop_at is not None and now >= self._stop_at:
            for running in self._running:
                running.worker.kill()
