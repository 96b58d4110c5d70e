"""Trials in vLLM: what a step costs with an architecture, and how the best ones really do.

Drafters of one K are measured in one call, those of one architecture next to each other, so that
one engine serves them in turn. The measuring itself is `harness bench`, handed in by the command.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from eval.assembly import bootstrap_of
from eval.errors import EvalError
from eval.paired import Arm, bench_arm, paired_differences
from eval.result import BenchResult, BenchRow
from eval.speedup import Bootstrap
from harness.config.bench import BenchConfig
from harness.config.sweep import SweepConfig
from harness.errors import CheckError
from harness.sweep.endings import Endings
from harness.sweep.records import Reason, Trial
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import FINAL, SURVIVORS, front, rank, served_rank
from harness.tracking import names
from harness.tracking.measurements import best_row
from harness.tracking.store import Store

ATTR_CLAIM = "harness.claim"
"""Of the study: a trial's number, and its PairedDifference to the base."""


class Measured(Protocol):
    """A finished measurement and its run."""

    @property
    def run_id(self) -> str:
        """Of the bench run."""

    @property
    def result(self) -> BenchResult:
        """What was measured."""


Measure = Callable[[BenchConfig], Measured]


class Served(NamedTuple):
    """A trial in a measurement."""

    row: BenchRow
    arm: Arm
    bootstrap: Bootstrap


class Unserved(NamedTuple):
    """Why a trial could not be measured."""

    reason: Reason
    detail: str


class Serving:
    """Measures trials of one sweep.

    Args:
        study: The study; figures are noted in it.
        bench: How to measure; drafters, K and prompts of cost measurements are put in.
        measure: Runs a bench, or finds the one that was run.
        store: Bench runs are tagged in it.
        parent_run_id: The sweep's run.
    """

    def __init__(
        self,
        study: SweepStudy,
        bench: BenchConfig,
        measure: Measure,
        store: Store,
        parent_run_id: str,
    ) -> None:
        self._study, self._bench, self._store = study, bench, store
        self._config: SweepConfig = study.config
        self._measure, self._parent_run_id = measure, parent_run_id
        self._endings = Endings(study)

    def measure_costs(self, trials: Sequence[Trial]) -> None:
        """What a step costs with each of these trials' architectures; a failure fails the trial."""
        changes = {"num_prompts": self._config.num_cost_prompts, "precision": None}
        for k, group in self._by_k(trials):
            for trial, outcome in self._measure_all(group, k, "costs", changes):
                if isinstance(outcome, Served):
                    self._note_cost(trial, outcome.row)
                else:
                    self._endings.fail(trial.number, *outcome)

    def serve(self) -> None:
        """Measures the best trials beside the base, then the last few to the asked precision."""
        served = self._serve(self._survivors(), SURVIVORS, {})
        if self._config.final_precision is not None:
            changes = {"precision": self._config.final_precision}
            served |= self._serve(self._finalists(), FINAL, changes)
        self._conclude(served)

    def _survivors(self) -> list[Trial]:
        trials = self._study.trials()
        is_front = self._config.is_multi_objective
        ranked = front(self._config, trials) if is_front else rank(self._config, trials)
        best = [trial for trial in ranked if trial.number][: self._config.num_served]
        base = [trial for trial in rank(self._config, trials) if trial.number == 0]
        return [*best, *base] if self._config.num_served else []

    def _finalists(self) -> list[Trial]:
        found = served_rank(self._config, self._study.trials())
        best = [trial for trial in found if trial.number][: self._config.num_final]
        return [*best, *(trial for trial in found if trial.number == 0)]

    def _by_k(self, trials: Iterable[Trial]) -> list[tuple[int, list[Trial]]]:
        """Trials by K, those of one architecture next to each other."""
        key: Callable[[Trial], tuple[int, str, int]] = lambda t: (  # noqa: E731 - used twice
            self._study.space.k_of(t.params), str(t.facts.get("architecture")), t.number,
        )  # fmt: skip
        ordered = sorted(trials, key=key)
        return [(k, list(group)) for k, group in itertools.groupby(ordered, lambda t: key(t)[0])]

    def _serve(
        self, trials: list[Trial], stage: str, changes: Mapping[str, object]
    ) -> dict[int, Served]:
        """By trial; those that could not be measured are noted and left out."""
        served: dict[int, Served] = {}
        for k, group in self._by_k(trials):
            for trial, outcome in self._measure_all(group, k, stage, changes):
                if isinstance(outcome, Served):
                    served[trial.number] = outcome
                    self._note_cost(trial, outcome.row)
                    figures = figures_of(outcome.row)
                else:
                    figures = {"reason": outcome.reason.value, "detail": outcome.detail}
                self._study.note_served(trial.number, {"stage": stage, **figures})
        return served

    def _measure_all(
        self, group: list[Trial], k: int, stage: str, changes: Mapping[str, object]
    ) -> list[tuple[Trial, Served | Unserved]]:
        """One measurement of all; when it fails, one of each, so that one cannot spoil the rest."""
        references = {trial.number: f"run:{trial.facts['run_id']}" for trial in group}
        drafters = [*references.values()]
        if stage == FINAL:
            drafters += self._champion(drafters)
        config = self._bench.model_copy(
            update={
                "name": f"{self._config.name} {stage} k{k}",
                "drafters": tuple(drafters),
                "k": (k,),
                **changes,
            }
        )
        try:
            measured = self._measure(config)
        except (EvalError, CheckError) as error:
            if len(group) > 1:
                alone = [self._measure_all([trial], k, stage, changes) for trial in group]
                return list(itertools.chain(*alone))
            reason = Reason.REFUSED if isinstance(error, CheckError) else Reason.SERVER
            return [(group[0], Unserved(reason, error.message))]
        self._tag(measured.run_id)
        return [(trial, _served(measured.result, references[trial.number])) for trial in group]

    def _conclude(self, served: Mapping[int, Served]) -> None:
        """Holds the best of what was measured against the base, prompt by prompt.

        Each is paired with the baseline of its own measurement, so that they may differ in K. The
        best is chosen by the figures that it is judged by: of m that were measured with it, its
        interval is made at 1 - (1 - confidence) / m (Bonferroni), so that the claim holds for any.
        """
        rivals = [t for t in served_rank(self._config, self._study.trials()) if t.number]
        if not rivals or not {0, rivals[0].number} <= served.keys():
            return
        best, base = rivals[0].number, served[0]
        num_rivals = sum(t.served["stage"] == rivals[0].served["stage"] for t in rivals)
        error = (1 - base.bootstrap.confidence) / num_rivals
        bootstrap = base.bootstrap.model_copy(update={"confidence": 1 - error})
        (found,) = paired_differences(base.arm, served[best].arm, bootstrap, is_by_category=False)
        self._study.set_attr(ATTR_CLAIM, {"trial": best, **found.model_dump(mode="json")})

    def _champion(self, known: Sequence[str]) -> list[str]:
        """The champion's reference, where there is one that is not measured anyway."""
        name = self._config.champion
        if name is None or names.ALIAS_CHAMPION not in self._store.registry.aliases(name):
            return []
        reference = f"models:/{name}@{names.ALIAS_CHAMPION}"
        return [] if reference in known else [reference]

    def _note_cost(self, trial: Trial, row: BenchRow) -> None:
        if row.step_cost is not None and self._endings.cost_of(trial) is None:
            self._endings.set_cost(trial, row.step_cost)

    def _tag(self, run_id: str) -> None:
        tags = {
            names.TAG_SWEEP_ID: self._study.sweep_id,
            names.TAG_SWEEP_NAME: self._config.name,
            names.TAG_PARENT: self._parent_run_id,
        }
        self._store.attach_run(run_id).set_tags(tags)


def _served(result: BenchResult, reference: str) -> Served:
    row = best_row(result, reference)
    arm = bench_arm(result, reference, row.k, row.concurrency)
    return Served(row, arm, bootstrap_of(result.spec))


def figures_of(row: BenchRow) -> dict[str, float | int | str | None]:
    """What is kept of a row: speedup and acceptance length with their ends."""
    figures: dict[str, float | int | str | None] = {"k": row.k, "num_prompts": row.num_prompts}
    intervals = {"decode_speedup": row.decode_speedup, "acceptance_length": row.acceptance_length}
    for name, interval in intervals.items():
        if interval is not None:
            figures |= {
                name: interval.value,
                f"{name}_low": interval.low,
                f"{name}_high": interval.high,
            }
    return figures
