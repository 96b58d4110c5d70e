"""The study: who proposes points, what became of them, and how it goes on after anything.

Optuna's storage is the truth of a sweep; MLflow is told from it (`ledger`). All calls come from
one coordinator, so nothing here is made for two at once.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import optuna
from optuna.trial import TrialState as OptunaState

from harness.config.sweep import Axis, ChoiceAxis, FloatAxis, SweepConfig
from harness.errors import ConfigError
from harness.sweep.records import Trial, TrialState, params_key
from harness.sweep.samplers import build_pruner, build_sampler
from harness.sweep.space import Params, Space, completed, differences, is_active

ATTR_SWEEP_ID = "harness.sweep_id"
ATTR_SPACE = "harness.space"
ATTR_PARENT_RUN = "harness.parent_run_id"
ATTR_OPTUNA = "harness.optuna_version"
_ATTR_SERVED = "harness.served."
_JSON = "json:"
"""Before a choice that Optuna could not store as it is: a list or a mapping."""


class SweepStudy:
    """A study opened for one sweep.

    Args:
        config: The sweep.
        space: Its space.
        storage: From `journal.open_storage`.

    Raises:
        ConfigError: A study of this name searches another space.
    """

    def __init__(
        self, config: SweepConfig, space: Space, storage: optuna.storages.BaseStorage
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.config, self.space = config, space
        self._seeded_for = -1
        self._finished: dict[int, Trial] = {}
        self._study = optuna.create_study(
            storage=storage,
            study_name=config.name,
            directions=[objective.resolved for objective in config.objectives],
            pruner=build_pruner(config),
            load_if_exists=True,
        )
        self._require_same_space()
        self._attrs: dict[str, Any] = self._study.user_attrs
        """A copy: Optuna's own is made anew at each look, and only we write."""
        if ATTR_SWEEP_ID not in self._attrs:
            self.set_attr(ATTR_OPTUNA, optuna.__version__)
            self.set_attr(ATTR_SWEEP_ID, uuid4().hex)
        self._enqueue_known()

    @property
    def sweep_id(self) -> str:
        """What the runs in MLflow carry; unlike the name it is never used twice."""
        return str(self._attrs[ATTR_SWEEP_ID])

    @property
    def optuna_study(self) -> optuna.Study:
        """For figures, which read it and change nothing."""
        return self._study

    def attr(self, key: str) -> Any:
        """A note on the whole sweep; None when there is none."""
        return self._attrs.get(key)

    def fresh_attr(self, key: str) -> Any:
        """The same as it stands in the storage now, where another process may write."""
        return self._study.user_attrs.get(key)

    def set_attr(self, key: str, value: Any) -> None:
        """Notes something on the whole sweep."""
        if self._attrs.get(key) != value:
            self._study.set_user_attr(key, value)
            self._attrs[key] = value

    def trials(self) -> tuple[Trial, ...]:
        """All trials by number."""
        attrs = self._attrs
        found: list[Trial] = []
        for frozen in self._study.get_trials(deepcopy=False):
            trial = self._finished.get(frozen.number)
            served = attrs.get(f"{_ATTR_SERVED}{frozen.number}", {})
            if trial is None or trial.served != served:
                trial = _as_trial(frozen, served)
                if trial.is_finished:
                    self._finished[frozen.number] = trial
            found.append(trial)
        return tuple(found)

    def trial(self, number: int) -> Trial:
        """One trial."""
        served = self._attrs.get(f"{_ATTR_SERVED}{number}", {})
        return _as_trial(self._frozen(number), served)

    def ask(self) -> Trial:
        """The next point: one that was put in by hand or was to be run first, else a proposal."""
        self._seed(len(self._study.get_trials(deepcopy=False)))
        return self._suggest(self._study.ask())

    def ask_again(self, number: int) -> Trial:
        """Completes a trial whose coordinator died while it was proposed."""
        self._seed(number)
        return self._suggest(self._handle(number))

    def note(self, number: int, **facts: Any) -> None:
        """Notes facts of a running trial; what stands already is not written again."""
        trial = self._handle(number)
        known = self._frozen(number).user_attrs
        for key, value in facts.items():
            if key not in known or known[key] != value:
                trial.set_user_attr(key, value)

    def note_served(self, number: int, figures: Mapping[str, Any]) -> None:
        """Notes what was measured in vLLM, after the trial was told."""
        self.set_attr(f"{_ATTR_SERVED}{number}", dict(figures))

    def report(self, number: int, step: int, value: float) -> None:
        """Tells the pruner how a trial does; the same step again is left as it was."""
        if step not in self._frozen(number).intermediate_values:
            self._handle(number).report(value, step)

    def is_to_prune(self, number: int) -> bool:
        """Whether the pruner gives a trial up, from all that was reported."""
        frozen = self._frozen(number)
        if self.config.is_multi_objective or not frozen.intermediate_values:
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(self._study.pruner.prune(self._study, frozen))

    def complete(
        self, number: int, values: Sequence[float], constraints: Mapping[str, float]
    ) -> None:
        """A trial that came to its end; positive constraints make it infeasible."""
        trial, known = self._handle(number), self._frozen(number).constraints
        for key, excess in constraints.items():
            if key not in known:
                trial.set_constraint(key, excess)
        self._study.tell(number, list(values))

    def prune(self, number: int) -> None:
        """A trial that was given up; its value is the last one reported."""
        self._study.tell(number, state=OptunaState.PRUNED)

    def fail(self, number: int) -> None:
        """A trial without a value."""
        self._study.tell(number, state=OptunaState.FAIL)

    def enqueue(self, params: Params, origin: str) -> None:
        """Puts a point in front of the proposals."""
        fixed = {key: _encode(value) for key, value in params.items()}
        self._study.enqueue_trial(fixed, user_attrs={"origin": origin})

    def twin_of(self, trial: Trial) -> Trial | None:
        """An earlier trial of the same point that did not fail: finished if there is one."""
        key = params_key(trial.params)
        twins = [
            other
            for other in self.trials()[: trial.number]
            if other.params
            and params_key(other.params) == key
            and other.state is not TrialState.FAIL
            and "duplicate_of" not in other.facts
        ]
        return next((t for t in twins if t.is_finished), twins[0] if twins else None)

    def _require_same_space(self) -> None:
        document = json.loads(json.dumps(self.space.document()))
        stored = self._study.user_attrs.get(ATTR_SPACE)
        if stored is None:
            self._study.set_user_attr(ATTR_SPACE, document)
        elif changed := differences(completed(stored), document):
            changes = "\n  ".join(changed)
            raise ConfigError(
                f"the sweep {self.config.name!r} was begun with another space or base:\n  "
                f"{changes}",
                "undo the change to go on with it, or give the changed sweep another name",
            )

    def _enqueue_known(self) -> None:
        """The base, the baselines and the points of a grid, each once, however often we die."""
        trials = self._study.get_trials(deepcopy=False)
        known = {trial.user_attrs.get("origin") for trial in trials}
        points = {"base": self.space.base_params}
        for index, baseline in enumerate(self.config.baselines):
            points[f"baseline {index}"] = self.space.complete(baseline, f"baselines[{index}]")
        if self.config.sampler.type == "grid":
            points |= {f"grid {i}": point for i, point in enumerate(self.space.grid())}
        for origin, params in points.items():
            if origin not in known:
                self.enqueue(params, origin)

    def _seed(self, number: int) -> None:
        """A sampler of each trial's own seed: proposals do not depend on how often we died."""
        if self._seeded_for != number:
            self._study.sampler = build_sampler(self.config, number)
            self._seeded_for = number

    def _suggest(self, trial: optuna.Trial) -> Trial:
        params: Params = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for key, axis in self.space.axes.items():
                if is_active(axis, params):
                    self._draw_again(trial, key)
                    params[key] = _suggest(trial, key, axis)
        trial.set_user_attr("stage", "asked")
        return self.trial(trial.number)

    def _draw_again(self, trial: optuna.Trial, key: str) -> None:
        """Draws once more what was stored before a crash: the next draw is then the right one."""
        frozen = self._frozen(trial.number)
        is_drawn = key in frozen.params and key not in frozen.system_attrs.get("fixed_params", {})
        if is_drawn and key not in trial.relative_params:
            distribution = frozen.distributions[key]
            self._study.sampler.sample_independent(self._study, frozen, key, distribution)

    def _frozen(self, number: int) -> optuna.trial.FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _handle(self, number: int) -> optuna.Trial:
        return optuna.Trial(self._study, self._frozen(number)._trial_id)  # noqa: SLF001 - no other way to a trial of an earlier process


def _suggest(trial: optuna.Trial, key: str, axis: Axis) -> Any:
    if isinstance(axis, ChoiceAxis):
        return _decode(trial.suggest_categorical(key, [_encode(c) for c in axis.choices]))
    if isinstance(axis, FloatAxis):
        return trial.suggest_float(key, axis.low, axis.high, log=axis.log, step=axis.step)
    return trial.suggest_int(key, axis.low, axis.high, log=axis.log, step=axis.step)


def _as_trial(frozen: optuna.trial.FrozenTrial, served: Mapping[str, Any]) -> Trial:
    begun, ended = frozen.datetime_start, frozen.datetime_complete
    return Trial(
        number=frozen.number,
        state=TrialState[frozen.state.name],
        params={key: _decode(value) for key, value in frozen.params.items()},
        values=tuple(frozen.values) if frozen.values is not None else None,
        reports=dict(frozen.intermediate_values),
        facts=dict(frozen.user_attrs),
        served=dict(served),
        is_feasible=all(excess <= 0 for excess in frozen.constraints.values()),
        started_s=begun.timestamp() if begun else None,
        duration_s=(ended - begun).total_seconds() if begun and ended else None,
    )


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _JSON + json.dumps(value, sort_keys=True)


def _decode(value: Any) -> Any:
    is_coded = isinstance(value, str) and value.startswith(_JSON)
    return json.loads(value.removeprefix(_JSON)) if is_coded else value
