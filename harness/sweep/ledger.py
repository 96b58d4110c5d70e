"""MLflow's side of a sweep: one run for all of it, one child run a trial, told from the study.

Nothing here decides. What could not be written is written later, because it is all in the study:
a store that is away for a minute delays the ledger and stops nothing.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping

from harness.config.load import dump_yaml, flatten
from harness.config.sweep import SweepConfig
from harness.digests import digest_json
from harness.drafter.provenance import code_digest
from harness.errors import ConfigError, TrackingError
from harness.sweep.records import Trial
from harness.sweep.study import ATTR_OPTUNA, ATTR_PARENT_RUN, SweepStudy
from harness.sweep.verdicts import count_failures, rank, served_rank
from harness.tracking import names
from harness.tracking.owner import is_alive
from harness.tracking.reaping import owner_of
from harness.tracking.records import Metric, RunStatus, RunSummary
from harness.tracking.run import Run
from harness.tracking.store import Store

CONFIG_ARTIFACT = "config/sweep.yaml"
TRIALS_ARTIFACT = "sweep/trials.json"
HOST_LOST = "its host or the cluster went away"
_RETRY_S = 5.0


class Ledger:
    """The runs of one sweep.

    Args:
        store: The open store.
        study: The open study.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: Store, study: SweepStudy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_behind = False
        """Whether the store could not be written when it was last tried."""
        self._store, self._study, self._clock = store, study, clock
        self._written: dict[int, str] = {}
        self._seen: dict[int, Trial] = {}
        """Finished trials that were written; the study hands out the same object again."""
        self._not_before = clock()
        self._parent: Run | None = None

    @property
    def parent_run_id(self) -> str:
        """The run of the whole sweep."""
        if self._parent is None:
            raise TrackingError("the sweep's run is not open")
        return self._parent.run_id

    def require_same_code(self) -> None:
        """Refuses to go on with a sweep that other code began: its trials would not compare.

        Raises:
            ConfigError: Names both digests.
        """
        known = self._study.attr(ATTR_PARENT_RUN)
        if known is None:
            return
        begun = self._store.get_run(known).tags.get(names.TAG_CODE_DIGEST)
        if begun not in {None, code_digest()}:
            raise ConfigError(
                f"the sweep {self._study.config.name!r} was begun by code {begun}, this is "
                f"{code_digest()}: one sweep is made by one code",
                "launch it from that code, or say --set name=ANOTHER for a new one",
            )

    def open(self) -> None:
        """Opens the sweep's run: the one of this study, found by its id if need be, or a new one.

        Raises:
            TrackingError: The store cannot be written.
        """
        config = self._study.config
        known = self._study.attr(ATTR_PARENT_RUN) or self._find_parent()
        if known is not None:
            self._parent = self._store.resume_run(known)
        else:
            self._parent = self._store.start_run(
                names.KIND_SWEEP,
                names.base_run_name(names.KIND_SWEEP, [config.name]),
                experiment=names.EXPERIMENT_SWEEP,
                tags={
                    names.TAG_SWEEP_ID: self._study.sweep_id,
                    names.TAG_SWEEP_NAME: config.name,
                },
            )
            self._describe(self._parent, config)
        self._study.set_attr(ATTR_PARENT_RUN, self._parent.run_id)

    def sync(self, trials: Iterable[Trial], *, is_last: bool = False) -> None:
        """Tells the store how trials stand; what did not change is not told again."""
        if self._clock() < self._not_before and not is_last:
            return
        trials = tuple(trials)
        changed = [t for t in trials if t is not self._seen.get(t.number)]
        try:
            for trial in changed:
                digest = digest_json([trial.facts.get("run_id"), trial_tags(trial)])
                if trial.facts.get("run_id") and self._written.get(trial.number) != digest:
                    run = self._store.attach_run(trial.facts["run_id"])
                    run.set_tags(trial_tags(trial))
                self._written[trial.number] = digest
                if trial.is_finished:
                    self._seen[trial.number] = trial
            if any(trial.is_finished for trial in changed):
                self._sum_up(trials)
            self.is_behind = False
        except TrackingError:
            if is_last:
                raise
            self.is_behind = True
            self._not_before = self._clock() + _RETRY_S

    def runs_of_trials(self) -> dict[int, list[RunSummary]]:
        """The store's runs by trial, newest first."""
        found: dict[int, list[RunSummary]] = {}
        wanted = {names.TAG_SWEEP_ID: self._study.sweep_id}
        for run in self._store.find_runs(kind=names.KIND_TRAIN, tags=wanted):
            number = run.tags.get(names.TAG_TRIAL, "")
            if number.isdecimal():
                found.setdefault(int(number), []).append(run)
        return found

    def close_abandoned(self, reason: str) -> tuple[str, ...]:
        """Ends the trials' runs that are RUNNING with nobody working on them; returns their ids."""
        closed = []
        try:
            for run in itertools.chain(*self.runs_of_trials().values()):
                owner = owner_of(run)
                is_gone = owner is None or is_alive(owner) is False
                if run.status is RunStatus.RUNNING and is_gone:
                    self._store.attach_run(run.run_id).finish(RunStatus.KILLED, reason=reason)
                    closed.append(run.run_id)
        except TrackingError:
            self.is_behind = True  # `finish` closes them
        return tuple(closed)

    def close_lost(self, run_id: str, reason: str) -> None:
        """Ends a run whose process is known to be gone, on whatever host that was."""
        try:
            if self._store.get_run(run_id).status is RunStatus.RUNNING:
                self._store.attach_run(run_id).finish(RunStatus.KILLED, reason=reason)
        except TrackingError:
            self.is_behind = True

    def see_off(self, run_id: str, patience_s: float, sleep: Callable[[float], None]) -> None:
        """Waits for a process on another host, asked to stop by its own launcher, to close its run.

        Then it is closed here, so that the trial can go on.
        """
        deadline = self._clock() + patience_s
        try:
            while self._is_elsewhere(run_id):
                if self._clock() >= deadline:
                    self.close_lost(run_id, HOST_LOST)
                    return
                sleep(_RETRY_S)
        except TrackingError:
            self.is_behind = True

    def _is_elsewhere(self, run_id: str) -> bool:
        run = self._store.get_run(run_id)
        owner = owner_of(run)
        is_open = run.status is RunStatus.RUNNING
        return is_open and owner is not None and is_alive(owner) is None

    def finish(self, trials: Iterable[Trial], status: RunStatus, reason: str | None) -> None:
        """Writes all that is left and ends the sweep's run.

        Raises:
            TrackingError: The store cannot be written.
        """
        trials = tuple(trials)
        self.close_abandoned("its process ended without closing it")
        self.sync(trials, is_last=True)
        self._sum_up(trials)
        if self._parent is not None:
            self._parent.finish(status, reason)

    @property
    def parent(self) -> Run:
        """The sweep's run, for figures and files."""
        if self._parent is None:
            raise TrackingError("the sweep's run is not open")
        return self._parent

    def _sum_up(self, trials: tuple[Trial, ...]) -> None:
        if self._parent is None:
            return
        now = sum(trial.is_finished for trial in trials)
        figures: dict[str, float] = {
            "num_trials": now,
            "num_pruned": sum(trial.state == "PRUNED" for trial in trials),
            "num_failures": count_failures(trials),
            "num_duplicates": sum("duplicate_of" in trial.facts for trial in trials),
        }
        ranked = rank(self._study.config, trials)
        if ranked and ranked[0].values:
            figures["best_value"] = ranked[0].values[0]
        self._parent.log_metrics([Metric(key, value, now) for key, value in figures.items()])
        best = (served_rank(self._study.config, trials) or ranked)[:1]
        for trial in best:
            self._parent.set_tags(
                {"best_trial": trial.number, "best_run": trial.facts.get("run_id")}
            )
        text = json.dumps([t.model_dump(mode="json") for t in trials], indent=1)
        self._parent.log_text(TRIALS_ARTIFACT, text)

    def _describe(self, run: Run, config: SweepConfig) -> None:
        run.log_params(flatten(config.model_dump(mode="json")))
        run.log_text(CONFIG_ARTIFACT, dump_yaml(config))
        run.set_tags({"versions.optuna": self._study.attr(ATTR_OPTUNA)})

    def _find_parent(self) -> str | None:
        """A run that was opened by a coordinator that died before it could note it."""
        wanted = {names.TAG_SWEEP_ID: self._study.sweep_id}
        found = self._store.find_runs(kind=names.KIND_SWEEP, tags=wanted)
        return found[-1].run_id if found else None


def trial_tags(trial: Trial) -> Mapping[str, object]:
    """How a trial stands, as tags of its run."""
    facts = {
        "stage": trial.stage,
        "state": trial.state.value,
        "params": trial.params,
        "origin": trial.origin,
        "reason": trial.facts.get("reason"),
        "detail": trial.facts.get("detail"),
        "value": list(trial.values) if trial.values else None,
        "is_feasible": trial.is_feasible,
        "acceptance_length": trial.facts.get("acceptance_length"),
        "served": trial.served or None,
    }
    return {names.TAG_TRIAL_FACT.format(key=k): v for k, v in facts.items() if v is not None}
