"""How trials end: told with values, given up, failed, or copied from one of the same point."""

from collections.abc import Iterable
from typing import Any

from harness.errors import ConfigError
from harness.sweep.records import Epoch, Reason, Trained, Trial, TrialState
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import (
    FINAL_STEP,
    constraints_of,
    may_retry,
    reports_of,
    value_of_epoch,
    values_of,
)

_COPIED = (
    "acceptance_length", "val_loss", "train_s", "num_parameters", "architecture", "path",
    "model_id", "reason", "detail",
)  # fmt: skip
_ATTR_COST = "harness.cost."
_LEAST_SEQ_LEN = 16
"""Of `total_seq_len` in a training's configuration."""


class Endings:
    """Brings trials to their end in the study. Every method can be called again after a crash."""

    def __init__(self, study: SweepStudy) -> None:
        self._study, self._config = study, study.config

    def cost_of(self, trial: Trial) -> float | None:
        """What a step costs in vLLM with a trial's architecture and K; None if unknown."""
        value = self._study.attr(self._cost_key(trial))
        return float(value) if isinstance(value, int | float) else None

    def set_cost(self, trial: Trial, cost: float) -> None:
        """Notes a measured cost, for all trials of this architecture and K."""
        self._study.set_attr(self._cost_key(trial), cost)

    def lacking_costs(self, trials: Iterable[Trial]) -> tuple[Trial, ...]:
        """Trained trials that wait for a cost, one for each architecture and K."""
        found: dict[str, Trial] = {}
        for trial in trials:
            is_trained = trial.state is TrialState.RUNNING and trial.stage == "trained"
            if is_trained and self._config.needs_costs and self.cost_of(trial) is None:
                found.setdefault(self._cost_key(trial), trial)
        return tuple(found.values())

    def end_early(self, trial: Trial) -> bool:
        """Ends a fresh point that needs no training: a copy, or one that makes none."""
        twin = self._study.twin_of(trial)
        if twin is not None:
            self._study.note(trial.number, duplicate_of=twin.number, stage="duplicate")
            return True
        try:
            self._study.space.resolve(trial.params)
        except ConfigError as error:
            self.fail(trial.number, Reason.INVALID, error.message)
            return True
        return False

    def take_epoch(self, number: int, epoch: Epoch) -> bool:
        """Notes a checkpoint's figures and asks the pruner; whether the trial is given up.

        After the last epoch there is nothing left to save: the trial is told, and may be served.
        """
        self.note_epoch(number, epoch)
        if self._config.is_multi_objective:
            return False
        cost = self.cost_of(self._study.trial(number))
        reports = reports_of(self._config, epoch, cost)
        for step, reported in reports.items():
            self._study.report(number, step, reported)
        if not reports or self._is_last(number, epoch) or not self._study.is_to_prune(number):
            return False
        value = value_of_epoch(self._config, epoch, cost)
        if value is not None and len(reports) > 1:
            self._study.report(number, FINAL_STEP, value)
        self._study.note(number, pruned_at_epoch=epoch.num_epochs, stage="pruned")
        return True

    def note_epoch(self, number: int, epoch: Epoch) -> None:
        """Notes the newest figures of a trial under way."""
        facts: dict[str, Any] = {"epoch": epoch.num_epochs, "model_id": epoch.model_id}
        facts |= {
            "acceptance_length": epoch.acceptance_length,
            "val_loss": epoch.val_loss,
            "architecture": epoch.architecture,
        }
        self._study.note(number, **{k: v for k, v in facts.items() if v is not None})

    def note_trained(self, number: int, trained: Trained) -> None:
        """Notes the figures of a finished training's best checkpoint."""
        facts = trained.model_dump(mode="json", exclude={"event", "epoch"})
        facts["best_epoch"] = None if trained.epoch is None else trained.epoch + 1
        known = {key: value for key, value in facts.items() if value is not None}
        self._study.note(number, **known)
        self._study.note(number, stage="trained")

    def settle(self, trial: Trial) -> None:
        """Tells a trained trial, unless the cost of its architecture is still to be measured."""
        cost = self.cost_of(trial)
        if cost is None and self._config.needs_costs:
            return
        values = values_of(self._config, trial, cost)
        if values is None:
            wanted = ", ".join(objective.metric for objective in self._config.objectives)
            self.fail(
                trial.number,
                Reason.ERROR,
                f"the training gave no figure for {wanted}; there is no acceptance length where "
                "the corpus is not the verifier's own greedy answers",
            )
            return
        self._study.complete(trial.number, values, constraints_of(self._config.limits, trial))

    def settle_all(self) -> None:
        """Tells every trained trial whose cost is known by now."""
        for trial in self._study.trials():
            if trial.state is TrialState.RUNNING and trial.stage == "trained":
                self.settle(trial)

    def settle_twins(self, trials: Iterable[Trial]) -> bool:
        """Ends copies whose original has ended, in the same way; whether there were any."""
        num_settled = 0
        for trial in trials:
            if trial.state is not TrialState.RUNNING or "duplicate_of" not in trial.facts:
                continue
            twin = self._study.trial(int(trial.facts["duplicate_of"]))
            if twin.is_finished:
                self._copy(trial, twin)
                num_settled += 1
        return num_settled > 0

    def prune(self, number: int) -> None:
        """Gives a trial up for good."""
        self._study.note(number, stage="pruned")
        self._study.prune(number)

    def fail(self, number: int, reason: Reason, detail: str) -> None:
        """Ends a trial without a value, and says why."""
        self._study.note(number, reason=reason.value, detail=detail[:500], stage="failed")
        self._study.fail(number)

    def retry_or_fail(self, number: int, reason: Reason, detail: str) -> bool:
        """Whether a trial is to be started again; it is failed when not.

        After running out of memory it is started with half of `total_seq_len`. What was decided
        of an attempt stands, however often it is asked.
        """
        trial = self._study.trial(number)
        if trial.retry.get("after_attempt") == trial.num_attempts:
            return True
        length: int | None = trial.retry.get("total_seq_len")
        if reason is Reason.OOM:
            train = self._study.space.resolve(trial.params).train
            length = (length or train.total_seq_len) // 2
        if (
            not may_retry(self._config, trial, reason)
            or (length or _LEAST_SEQ_LEN) < _LEAST_SEQ_LEN
        ):
            self.fail(number, reason, detail)
            return False
        is_lost = reason is Reason.LOST
        retry: dict[str, Any] = {
            "count": int(trial.retry.get("count", 0)) + (not is_lost),
            "num_losses": int(trial.retry.get("num_losses", 0)) + is_lost,
            "after_attempt": trial.num_attempts,
            "reason": reason.value,
        }
        if length is not None:
            retry["total_seq_len"] = length
        self._study.note(number, retry=retry, stage="to be retried")
        return True

    def resume_told(self, trial: Trial) -> bool:
        """Takes the last step of a trial whose end was decided already; whether it was."""
        if trial.stage == "pruned":
            self._study.prune(trial.number)
        elif trial.stage == "failed":
            self._study.fail(trial.number)
        elif trial.stage == "trained":
            self.settle(trial)
        elif "duplicate_of" not in trial.facts:
            return False
        return True

    def _is_last(self, number: int, epoch: Epoch) -> bool:
        train = self._study.space.resolve(self._study.trial(number).params).train
        is_out_of_steps = train.max_steps is not None and epoch.step >= train.max_steps
        return is_out_of_steps or epoch.num_epochs >= train.epochs

    def _copy(self, trial: Trial, twin: Trial) -> None:
        facts = {key: twin.facts[key] for key in _COPIED if key in twin.facts}
        self._study.note(trial.number, **facts)
        if twin.state is TrialState.FAIL:
            self._study.fail(trial.number)
        elif twin.state is TrialState.PRUNED:
            if twin.values:
                self._study.report(trial.number, max(twin.reports, default=1), twin.values[0])
            self._study.prune(trial.number)
        else:
            self._study.complete(
                trial.number, list(twin.values or ()), constraints_of(self._config.limits, twin)
            )

    def _cost_key(self, trial: Trial) -> str:
        k = self._study.space.k_of(trial.params)
        return f"{_ATTR_COST}{trial.facts.get('architecture')}.{k}"
