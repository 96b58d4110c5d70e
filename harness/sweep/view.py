"""How a sweep is shown: rows of trials, what is left, the best point as a configuration."""

from collections.abc import Iterable, Sequence
from typing import Any

from eval.paired import PairedDifference, acceptance_sentence, speed_sentence
from eval.result import Interval
from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.sweep.endings import Endings
from harness.sweep.records import Trial, TrialState
from harness.sweep.serving import ATTR_CLAIM
from harness.sweep.space import spell
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import SURVIVORS, has_next, rank, served_rank
from harness.tracking.markdown import page_table

COLUMNS = ("trial", "what differs", "stage", "acceptance", "speedup", "min", "why")
LEGEND = (
    "acceptance is replayed and speedup predicted, but where the stage says served or final; "
    "intervals are of vLLM"
)
_DESCRIBED = 20
"""Trials that the description names: it holds 8,000 characters."""
_SHOWN = 200
"""Characters of a reason that are shown."""


class Overview(Frozen):
    """A sweep at a glance."""

    rows: tuple[tuple[object, ...], ...]
    num_finished: int
    num_pruned: int
    num_failed: int
    eta_s: float | None
    """Until the last trial is told; None before the first one is."""


def overview(study: SweepStudy, trials: Sequence[Trial]) -> Overview:
    """The table of a sweep and its counts."""
    endings = Endings(study)
    shown = [trial for trial in trials if trial.params]
    return Overview(
        rows=tuple(_row(study, trial, endings.cost_of(trial)) for trial in shown),
        num_finished=sum(trial.is_finished for trial in trials),
        num_pruned=sum(trial.state is TrialState.PRUNED for trial in trials),
        num_failed=sum(trial.state is TrialState.FAIL for trial in trials),
        eta_s=_eta_s(study, trials),
    )


def describe(study: SweepStudy, trials: Sequence[Trial]) -> str:
    """Markdown for the sweep's run: the claim, then the best trials."""
    served, ranked = served_rank(study.config, trials), rank(study.config, trials)
    best = [*served, *(trial for trial in ranked if trial not in served)][:_DESCRIBED]
    told = page_table(COLUMNS, overview(study, best).rows)
    counted = f"The best {len(best)} of {len(trials)} trials"
    return f"{conclusion(study)}.\n\n{told}\n\n{counted}; {LEGEND}.\n"


def best_trial(study: SweepStudy) -> Trial | None:
    """The best of what was measured in vLLM, else of what was told; None before either."""
    trials = study.trials()
    found = served_rank(study.config, trials) or rank(study.config, trials)
    return found[0] if found else None


def best_config(study: SweepStudy, trial: Trial) -> TrainConfig:
    """The training of a trial, under a name of its own, as `harness train` takes it."""
    point = study.space.resolve(trial.params)
    name = f"{study.config.name} best"
    changes: dict[str, Any] = {"name": name, "smoke": "auto", "replay_k": point.k}
    if "total_seq_len" in trial.retry:
        changes["total_seq_len"] = trial.retry["total_seq_len"]
    return point.train.model_copy(update=changes)


def conclusion(study: SweepStudy) -> str:
    """How the best trial stands to the base in vLLM, the objective's figure first."""
    found = study.attr(ATTR_CLAIM)
    if found is None:
        return "no trial was measured in vLLM beside the base, so nothing is claimed"
    trial = f"trial {found['trial']}"
    difference = PairedDifference.model_validate({k: v for k, v in found.items() if k != "trial"})
    sentences = [acceptance_sentence(difference, "the base", trial)]
    if difference.speedup_ratio is not None:
        sentences.append(speed_sentence(difference, "the base", trial))
    if study.config.objectives[0].metric == "decode_speedup":
        sentences.reverse()
    return "; ".join(sentences)


def _row(study: SweepStudy, trial: Trial, cost: float | None) -> tuple[object, ...]:
    base = study.space.base_params
    differing = {key: value for key, value in trial.params.items() if base.get(key) != value}
    return (
        trial.number,
        spell(differing),
        _stage(trial),
        _acceptance(trial),
        _speedup(trial, cost),
        None if trial.duration_s is None else round(trial.duration_s / 60, 1),
        _why(trial),
    )


def explain(trials: Iterable[Trial]) -> tuple[str, ...]:
    """What is to be said of failures, a line each: the table has no room for it."""
    lines = []
    for trial in trials:
        for facts in (trial.facts, trial.served):
            if "reason" in facts and "duplicate_of" not in trial.facts:
                detail = str(facts.get("detail", ""))[:_SHOWN]
                lines.append(f"trial {trial.number}: {facts['reason']}: {detail}")
    return tuple(lines)


def _stage(trial: Trial) -> str:
    if "stage" in trial.served and "reason" not in trial.served:
        return "served" if trial.served["stage"] == SURVIVORS else str(trial.served["stage"])
    if trial.state is TrialState.COMPLETE and "duplicate_of" not in trial.facts:
        return "trained"
    if trial.stage == "training" and "epoch" in trial.facts:
        return f"training, epoch {trial.facts['epoch']}"
    return trial.stage


def _acceptance(trial: Trial) -> str | None:
    served = _interval(trial, "acceptance_length")
    replayed = trial.figure("acceptance_length")
    if served is not None:
        return served
    return None if replayed is None else f"{replayed:.3f}"


def _speedup(trial: Trial, cost: float | None) -> str | None:
    served = _interval(trial, "decode_speedup")
    length = trial.figure("acceptance_length")
    if served is not None:
        return served
    return None if length is None or cost is None else f"{length / cost:.3f}"


def _interval(trial: Trial, name: str) -> str | None:
    value = trial.served.get(name)
    if not isinstance(value, float):
        return None
    low, high = trial.served.get(f"{name}_low"), trial.served.get(f"{name}_high")
    return Interval(value=value, low=low, high=high).text(digits=3)


def _why(trial: Trial) -> str | None:
    """Why it ended where it did: the first that holds."""
    facts, served = trial.facts, trial.served
    is_retried = trial.state is TrialState.RUNNING and bool(trial.retry)
    words = (
        ("duplicate_of" in facts, f"as trial {facts.get('duplicate_of')}"),
        ("reason" in facts, str(facts.get("reason"))),
        ("reason" in served, f"not served: {served.get('reason')}"),
        (trial.state is TrialState.PRUNED, f"behind after epoch {facts.get('pruned_at_epoch')}"),
        (not trial.is_feasible, "beyond the limits"),
        (is_retried, f"attempt {trial.num_attempts}, after: {trial.retry.get('reason')}"),
    )
    return next((text for holds, text in words if holds), None)


def _eta_s(study: SweepStudy, trials: Iterable[Trial]) -> float | None:
    trials = tuple(trials)
    durations = [t.duration_s for t in trials if t.is_finished and t.duration_s is not None]
    if not durations:
        return None
    num_begun = sum(trial.state is not TrialState.WAITING for trial in trials)
    left = max(study.config.n_trials - num_begun, 0) if has_next(study.config, trials) else 0
    left += sum(trial.state is TrialState.RUNNING for trial in trials)
    return left * sum(durations) / len(durations) / (study.config.workers or 1)
