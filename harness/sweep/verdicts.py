"""What figures of a trial mean for the search: its values, its constraints, what the pruner hears.

A speedup is predicted: acceptance length over what a step costs in vLLM with a drafter of that
architecture and K. Source: eval.costs, speedup = tokens per step / step cost.
"""

from collections.abc import Iterable, Mapping

from harness.config.sweep import Limits, Metric, SweepConfig, Wilcoxon
from harness.sweep.records import Epoch, Reason, Trial, TrialState

SURVIVORS, FINAL = "survivors", "final"
"""Measurements in vLLM: of the best trials, and of the best of these to the asked precision."""
FINAL_STEP = 1_000_000_000
"""The report that stands as a pruned trial's value where reports are of single prompts."""
_STEPS_PER_RUNG = 100_000
MOST_LOSSES = 10
"""Hosts that a trial may lose, which is not its fault; more, and it may be what takes them down."""
_RETRIED = {Reason.KILLED, Reason.STORE, Reason.SERVER}
_RETRY = "retry of "


def figure_of(
    metric: Metric, figures: Mapping[str, float | None], cost: float | None
) -> float | None:
    """One figure of a trial; None when it was not measured or its cost is unknown."""
    if metric != "decode_speedup":
        return figures.get(metric)
    length = figures.get("acceptance_length")
    return length / cost if length is not None and cost is not None else None


def values_of(config: SweepConfig, trial: Trial, cost: float | None) -> list[float] | None:
    """The values that a trained trial is told with, one an objective; None when one is missing."""
    figures = {
        name: trial.figure(name)
        for name in ("acceptance_length", "val_loss", "train_s", "num_parameters")
    }
    found = [figure_of(objective.metric, figures, cost) for objective in config.objectives]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def constraints_of(limits: Limits, trial: Trial) -> dict[str, float]:
    """Excess over each limit, relative to it; positive is infeasible."""
    bounds = {"num_parameters": limits.max_parameters, "train_s": limits.max_train_s}
    excess: dict[str, float] = {}
    for name, bound in bounds.items():
        found = trial.figure(name)
        if bound is not None and found is not None:
            excess[name] = found / bound - 1
    return excess


def reports_of(config: SweepConfig, epoch: Epoch, cost: float | None) -> dict[int, float]:
    """What the pruner hears of a checkpoint: step to value; empty while the cost is unknown."""
    metric = config.objectives[0].metric
    if isinstance(config.pruner, Wilcoxon):
        found = {
            epoch.rung * _STEPS_PER_RUNG + index: figure_of(
                metric, {"acceptance_length": epoch.by_prompt[name]}, cost
            )
            for index, name in enumerate(sorted(epoch.by_prompt))
        }
    else:
        figures = {"acceptance_length": epoch.acceptance_length, "val_loss": epoch.val_loss}
        found = {epoch.rung: figure_of(metric, figures, cost)}
    return {step: value for step, value in found.items() if value is not None}


def value_of_epoch(config: SweepConfig, epoch: Epoch, cost: float | None) -> float | None:
    """The first objective's figure after an epoch."""
    figures = {"acceptance_length": epoch.acceptance_length, "val_loss": epoch.val_loss}
    return figure_of(config.objectives[0].metric, figures, cost)


def may_retry(config: SweepConfig, trial: Trial, reason: Reason) -> bool:
    """Whether a trial that failed so is tried again."""
    if reason is Reason.LOST:
        return int(trial.retry.get("num_losses", 0)) < MOST_LOSSES
    if int(trial.retry.get("count", 0)) >= config.max_retries:
        return False
    return reason in _RETRIED or (reason is Reason.OOM and config.oom_halves_seq_len)


def count_failures(trials: Iterable[Trial]) -> int:
    """Failures that count: not points that make no training, not copies, not those tried anew."""
    trials = tuple(trials)
    again = {trial.origin for trial in trials}
    return sum(
        trial.state is TrialState.FAIL
        and trial.facts.get("reason") != Reason.INVALID
        and "duplicate_of" not in trial.facts
        and retry_origin(trial.number) not in again
        for trial in trials
    )


def retry_origin(number: int) -> str:
    """What marks a trial as the repetition of another."""
    return f"{_RETRY}{number}"


def has_next(config: SweepConfig, trials: Iterable[Trial]) -> bool:
    """Whether a further point is to be asked for: the budget, points put in, the end of a grid."""
    trials = tuple(trials)
    waiting = [trial for trial in trials if trial.state is TrialState.WAITING]
    if any(is_retry(trial) for trial in waiting):
        return True
    num_begun = sum(t.state is not TrialState.WAITING and not is_retry(t) for t in trials)
    is_open = config.sampler.type != "grid" or bool(waiting)
    return is_open and num_begun < config.n_trials


def is_retry(trial: Trial) -> bool:
    """Whether a trial repeats a failed one, on top of the budget."""
    return trial.origin.startswith(_RETRY)


def rank(config: SweepConfig, trials: Iterable[Trial]) -> list[Trial]:
    """Feasible completed trials, best first by the first objective; copies are left out."""
    sign = -1 if config.objectives[0].resolved == "maximize" else 1
    done = [
        trial
        for trial in trials
        if trial.state is TrialState.COMPLETE
        and trial.values
        and trial.is_feasible
        and "duplicate_of" not in trial.facts
    ]
    return sorted(done, key=lambda trial: (sign * (trial.values or (0.0,))[0], trial.number))


def front(config: SweepConfig, trials: Iterable[Trial]) -> list[Trial]:
    """The trials that no other beats in every objective, best first by the first one."""
    signs = [-1 if objective.resolved == "maximize" else 1 for objective in config.objectives]
    ranked = rank(config, trials)
    points = [[s * v for s, v in zip(signs, t.values or (), strict=True)] for t in ranked]
    return [
        trial
        for trial, own in zip(ranked, points, strict=True)
        if not any(
            other != own and all(o <= v for o, v in zip(other, own, strict=True))
            for other in points
        )
    ]


def served_rank(config: SweepConfig, trials: Iterable[Trial]) -> list[Trial]:
    """Trials that were measured in vLLM, best first; those of the last measurement before others.

    Figures of two measurements were not taken side by side, so they are not mixed.
    """
    metric = config.objectives[0].metric
    key = metric if metric in {"decode_speedup", "acceptance_length"} else "acceptance_length"
    found = [trial for trial in trials if isinstance(trial.served.get(key), float)]
    return sorted(found, key=lambda t: (t.served.get("stage") != FINAL, -t.served[key]))
