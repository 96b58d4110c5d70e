"""Trials in vLLM: what a step costs with an architecture, and how the best ones really do.

Drafters of one K are measured in one call, those of one architecture next to each other, so that
one engine serves them in turn. The measuring itself is `harness bench`, handed in by the command.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from eval.errors import EvalError
from eval.paired import bench_arm, paired_differences
from eval.result import BenchResult, BenchRow, Interval
from eval.speedup import Bootstrap
from harness.config.bench import BenchConfig
from harness.config.sweep import SweepConfig
from harness.errors import CheckError, ConfigError
from harness.sweep.endings import Endings
from harness.sweep.records import Reason, Trial
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import front, rank, served_rank
from harness.tracking import names
from harness.tracking.measurements import best_row
from harness.tracking.store import Store

ATTR_CONCLUSION = "harness.conclusion"


class Measured(Protocol):
    """A finished measurement and its run."""

    @property
    def run_id(self) -> str:
        """Of the bench run."""

    @property
    def result(self) -> BenchResult:
        """What was measured."""


Measure = Callable[[BenchConfig], Measured]


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
                if isinstance(outcome, BenchRow):
                    self._note_cost(trial, outcome)
                else:
                    self._endings.fail(trial.number, *outcome)

    def serve(self) -> None:
        """Measures the best trials beside the base, then the last few to the asked precision."""
        chosen = self._survivors()
        for k, group in self._by_k(chosen):
            self._serve(group, k, "survivors", {})
        if self._config.final_precision is not None:
            changes = {"precision": self._config.final_precision}
            for k, group in self._by_k(self._finalists()):
                self._serve(group, k, "final", changes)

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

    def _serve(self, group: list[Trial], k: int, stage: str, changes: Mapping[str, object]) -> None:
        for trial, outcome in self._measure_all(group, k, stage, changes):
            if isinstance(outcome, BenchRow):
                self._note_cost(trial, outcome)
                self._study.note_served(trial.number, {"stage": stage, **figures_of(outcome)})
            else:
                reason, detail = outcome
                figures = {"stage": stage, "reason": reason.value, "detail": detail}
                self._study.note_served(trial.number, figures)

    def _measure_all(
        self, group: list[Trial], k: int, stage: str, changes: Mapping[str, object]
    ) -> list[tuple[Trial, BenchRow | tuple[Reason, str]]]:
        """One measurement of all; when it fails, one of each, so that one cannot spoil the rest."""
        references = {trial.number: f"run:{trial.facts['run_id']}" for trial in group}
        drafters = [*references.values()]
        if stage == "final":
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
            return [(group[0], (reason, error.message))]
        self._tag(measured.run_id)
        if stage != "costs":
            self._conclude(measured.result, references)
        return [(t, best_row(measured.result, references[t.number])) for t in group]

    def _conclude(self, result: BenchResult, references: dict[int, str]) -> None:
        """Compares the best of a measurement with the base, prompt by prompt."""
        if 0 not in references:
            return
        lengths = {
            number: row.acceptance_length.value
            for number, reference in references.items()
            if (row := best_row(result, reference)).acceptance_length
        }
        others = [number for number in lengths if number]
        if not others or 0 not in lengths:
            return
        best = max(others, key=lambda number: lengths[number])
        gain = acceptance_gain(result, references[best], references[0])
        self._study.set_attr(ATTR_CONCLUSION, {"trial": best, **gain.model_dump()})

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


def figures_of(row: BenchRow) -> dict[str, float | int | None]:
    """What is kept of a row: speedup and acceptance length with their ends."""
    figures: dict[str, float | int | None] = {"k": row.k, "num_prompts": row.num_prompts}
    intervals = {"decode_speedup": row.decode_speedup, "acceptance_length": row.acceptance_length}
    for name, interval in intervals.items():
        if interval is not None:
            figures |= {
                name: interval.value,
                f"{name}_low": interval.low,
                f"{name}_high": interval.high,
            }
    return figures


def acceptance_gain(result: BenchResult, drafter: str, base: str) -> Interval:
    """Acceptance length of a drafter less that of another, on the same prompts.

    Raises:
        ConfigError: They drafted on no prompt together.
        MeasurementError: They answered no prompt together.
    """
    point = result.spec.k[0], min(result.spec.concurrency)
    bootstrap = Bootstrap(
        confidence=result.spec.confidence, num_resamples=result.spec.num_resamples
    )
    first, second = bench_arm(result, base, *point), bench_arm(result, drafter, *point)
    (found,) = paired_differences(first, second, bootstrap, is_by_category=False)
    if found.acceptance_difference is None:
        raise ConfigError(f"{drafter} and {base} were measured on no prompt together")
    return found.acceptance_difference
