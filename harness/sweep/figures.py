"""Pictures of a study: history, importance, parallel coordinates, slices; interactive, offline."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import optuna
from optuna.trial import TrialState

from harness.sweep.study import SweepStudy
from harness.tracking.run import Run

_LEAST_TRIALS = 2
_FOLDER = "sweep"


def importances(study: SweepStudy, objective: int = 0) -> dict[str, float]:
    """The share of each key in what separates good trials from bad ones (PED-ANOVA).

    Empty with fewer than two finished trials, or where all did equally well.
    """
    own = study.optuna_study
    if not _is_drawable(own):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = optuna.importance.get_param_importances(
                own,
                evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
                target=_target(study, objective),
            )
        except (ValueError, RuntimeError):  # all values are equal, or no key is shared by all
            return {}
    return {key: float(share) for key, share in found.items()}


def log_figures(study: SweepStudy, run: Run) -> tuple[str, ...]:
    """Draws what can be drawn onto the sweep's run, as HTML and PNG; the names of the figures."""
    drawn = {}
    for name, draw in _figures(study):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                figure = draw()
            except (ValueError, RuntimeError):  # nothing to see yet: too few trials, equal values
                continue
        drawn[name] = figure
    run.log_figures({f"{_FOLDER}/{name}": figure for name, figure in drawn.items()})
    return tuple(drawn)


def _figures(study: SweepStudy) -> Iterator[tuple[str, Callable[[], Any]]]:
    own = study.optuna_study
    if not _is_drawable(own):
        return
    drawn = optuna.visualization
    for index, objective in enumerate(study.config.objectives):
        options = {"target": _target(study, index), "target_name": objective.metric}
        suffix = f"_{objective.metric}" if study.config.is_multi_objective else ""
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        yield f"history{suffix}", partial(drawn.plot_optimization_history, own, **options)
        yield (
            f"importance{suffix}",
            partial(drawn.plot_param_importances, own, evaluator=evaluator, **options),
        )
        yield f"parallel{suffix}", partial(drawn.plot_parallel_coordinate, own, **options)
        yield f"slice{suffix}", partial(drawn.plot_slice, own, **options)
    if study.config.is_multi_objective:
        yield "front", partial(drawn.plot_pareto_front, own)
    else:
        yield "reports", partial(drawn.plot_intermediate_values, own)


def _target(study: SweepStudy, index: int) -> Callable[[optuna.trial.FrozenTrial], float] | None:
    """None where there is one objective: Optuna then knows its direction."""
    if not study.config.is_multi_objective:
        return None
    return lambda trial: float(trial.values[index])


def _is_drawable(study: optuna.Study) -> bool:
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return len(done) >= _LEAST_TRIALS
