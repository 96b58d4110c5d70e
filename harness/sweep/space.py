"""What is searched: axes held against the base training, points made whole, spaces compared."""

import difflib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from harness.config.load import Frozen, flatten
from harness.config.sweep import Axis, ChoiceAxis, FloatAxis, IntAxis, SweepConfig
from harness.config.train import TrainConfig
from harness.errors import ConfigError

SERVING_KEYS = ("k",)
"""Keys of the space that say how a drafter is served, not how it is trained."""
_LEFT_OUT = {"name", "replay_k"}
"""Keys of the base that each trial has of its own."""
_NOT_SEARCHED = {
    "verifier": "trials of one sweep share the verifier",
    "corpus": "trials of one sweep share the corpus",
    "val_ratio": "trials are compared on the same held-out conversations",
    "name": "trials are named after the sweep",
    "keep_best": "it changes no weights",
    "upload_below_mb": "it changes no weights",
    "smoke": "it changes no weights",
    "log_every_steps": "it changes no weights",
    "num_workers": "it changes no weights",
    "replay_tokens": "trials are compared on the same held-out conversations",
    "replay_k": "trials are replayed with the k that they are served with",
    "eval_prompts": "it changes no weights",
    "eval_num_prompts": "it changes no weights",
    "eval_max_tokens": "it changes no weights",
}
Params = dict[str, Any]


class Point(Frozen):
    """A point made whole: what is trained, and how it is served."""

    train: TrainConfig
    k: int
    """num_speculative_tokens."""


class Space:
    """The axes of a sweep over its base training.

    Raises:
        ConfigError: A key is unknown or not to be searched, an end or a choice of an axis makes no
            training, or the base lies outside.
    """

    def __init__(self, config: SweepConfig, base: TrainConfig) -> None:
        self.axes: dict[str, Axis] = dict(config.space)
        self.base = base
        self._k = config.k
        self._config = config
        for key, axis in self.axes.items():
            _require_key(key)
            self._require_condition(key, axis)
            for value in _extremes(axis):
                self._require_loads({key: value})
        self.base_params = self.complete({}, "the base training")

    def complete(self, given: Mapping[str, Any], what: str) -> Params:
        """A whole point: the given values, the others as in the base.

        Args:
            given: Keys of the space to values.
            what: What the point is, for messages.

        Raises:
            ConfigError: A key is not in the space, or a value lies outside its axis.
        """
        if unknown := sorted(given.keys() - self.axes.keys()):
            near = difflib.get_close_matches(unknown[0], self.axes, n=1)
            raise ConfigError(
                f"{what}: {unknown[0]!r} is no key of the space"
                + (f"; did you mean {near[0]}?" if near else "")
            )
        params: Params = {}
        for key, axis in self.axes.items():
            if not is_active(axis, params):
                continue
            value = given[key] if key in given else self._base_value(key)
            if not contains(axis, value):
                raise ConfigError(
                    f"{what}: {key} = {value!r} lies outside of {describe_axis(axis)}",
                    f"widen space.{key}, or give {key} under `fixed`",
                )
            params[key] = as_value(axis, value)
        self.resolve(params)
        return params

    def resolve(self, params: Mapping[str, Any]) -> Point:
        """The training and serving that a point means.

        Raises:
            ConfigError: They make no training together.
        """
        document = self.base.model_dump(mode="json")
        for key, value in params.items():
            if key not in SERVING_KEYS:
                _put(document, key, value)
        try:
            train = TrainConfig.model_validate(document)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, p['loc'])) or 'config'}: {p['msg']}" for p in error.errors()
            )
            raise ConfigError(f"the point {spell(params)} is no training: {problems}") from error
        return Point(train=train, k=self.k_of(params))

    def k_of(self, params: Mapping[str, Any]) -> int:
        """Tokens proposed per draft at a point."""
        return int(params.get("k", self._k))

    def grid(self) -> Iterator[Params]:
        """Every point of a finite space, in the order of the axes."""
        values = [list(axis_values(axis)) for axis in self.axes.values()]
        for point in itertools.product(*values):
            yield dict(zip(self.axes, point, strict=True))

    def document(self) -> dict[str, Any]:
        """What makes trials comparable, as JSON: the base, the axes, the objectives."""
        config = self._config
        return {
            "base": self.base.model_dump(mode="json", exclude=_LEFT_OUT),
            "space": {key: axis.model_dump(mode="json") for key, axis in self.axes.items()},
            "k": config.k,
            "objectives": [[o.metric, o.resolved] for o in config.objectives],
            "limits": config.limits.model_dump(mode="json"),
        }

    def _base_value(self, key: str) -> Any:
        if key in SERVING_KEYS:
            return self._k
        value = flatten(self.base.model_dump(mode="json")).get(key)
        if value is None and None not in getattr(self.axes[key], "choices", ()):
            raise ConfigError(
                f"the base training does not say {key}, which is searched: trial 0 needs a value",
                f"give {key} in the base training's YAML or under `fixed`",
            )
        return value

    def _require_condition(self, key: str, axis: Axis) -> None:
        earlier = list(itertools.takewhile(lambda other: other != key, self.axes))
        for other, value in axis.when.items():
            if other not in earlier:
                raise ConfigError(
                    f"space.{key}.when: expected keys of the space above it, found {other!r}"
                )
            if not contains(self.axes[other], value):
                raise ConfigError(
                    f"space.{key}.when: {other} never is {value!r}; it is "
                    f"{describe_axis(self.axes[other])}"
                )

    def _require_loads(self, params: Params) -> None:
        """One value alone on the base; the conditions of its axis hold."""
        for key in list(params):
            params |= {k: v for k, v in self.axes[key].when.items() if k not in params}
        try:
            self.resolve(params)
        except ConfigError as error:
            raise ConfigError(f"space.{error.message}", "correct the ends or choices") from error


def is_active(axis: Axis, params: Mapping[str, Any]) -> bool:
    """Whether an axis is searched at a point."""
    return all(key in params and params[key] == value for key, value in axis.when.items())


def contains(axis: Axis, value: Any) -> bool:
    """Whether a value is one that the axis can take."""
    if isinstance(axis, ChoiceAxis):
        return any(_same(value, choice) for choice in axis.choices)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if not axis.low <= value <= axis.high:
        return False
    step = axis.step
    return step is None or math.isclose((value - axis.low) / step, round((value - axis.low) / step))


def as_value(axis: Axis, value: Any) -> Any:
    """The value in the type of its axis: 1 of a float axis is 1.0."""
    if isinstance(axis, ChoiceAxis):
        return next(choice for choice in axis.choices if _same(value, choice))
    return float(value) if isinstance(axis, FloatAxis) else int(value)


def axis_values(axis: Axis) -> Iterator[Any]:
    """All values of a finite axis."""
    if isinstance(axis, ChoiceAxis):
        yield from axis.choices
        return
    step = axis.step or 1
    for index in range(int((axis.high - axis.low) / step + 1e-9) + 1):
        yield as_value(axis, axis.low + index * step)


def describe_axis(axis: Axis) -> str:
    """An axis as people say it."""
    if isinstance(axis, ChoiceAxis):
        text = "one of " + ", ".join(spell_value(choice) for choice in axis.choices)
    else:
        text = f"{axis.low:g} to {axis.high:g}"
        if axis.log:
            text += ", logarithmic"
        elif axis.step is not None and not (isinstance(axis, IntAxis) and axis.step == 1):
            text += f", in steps of {axis.step:g}"
    if axis.when:
        text += " where " + " and ".join(f"{k} = {spell_value(v)}" for k, v in axis.when.items())
    return text


def completed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of an earlier version, its base with the keys that have come since.

    They have their defaults, which change nothing.
    """
    added = {
        key: field.get_default(call_default_factory=True)
        for key, field in TrainConfig.model_fields.items()
        if not field.is_required() and key not in _LEFT_OUT
    }
    base = {**json.loads(json.dumps(added)), **document["base"]}
    return {**document, "base": base}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Two documents of spaces as lines `key: old -> new`; empty when they are equal."""
    old, new = flatten(dict(before)), flatten(dict(now))
    return tuple(
        f"{key}: {spell_value(old.get(key))} -> {spell_value(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    )


def spell(params: Mapping[str, Any]) -> str:
    """A point on one line."""
    return ", ".join(f"{key}={spell_value(value)}" for key, value in params.items()) or "(base)"


def spell_value(value: Any) -> str:
    """A value as a table shows it."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def _same(one: Any, other: Any) -> bool:
    """Equality that keeps true and 1 apart, and takes tuples for lists."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _extremes(axis: Axis) -> tuple[Any, ...]:
    return axis.choices if isinstance(axis, ChoiceAxis) else (axis.low, axis.high)


def _require_key(key: str) -> None:
    first = key.partition(".")[0]
    if key in SERVING_KEYS:
        return
    if first not in TrainConfig.model_fields:
        known = [*TrainConfig.model_fields, *SERVING_KEYS]
        near = difflib.get_close_matches(first, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"space.{key}: no key of a training{hint}")
    if first in _NOT_SEARCHED:
        raise ConfigError(f"space.{key}: cannot be searched: {_NOT_SEARCHED[first]}")


def _put(document: dict[str, Any], key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        inner = document.get(parent)
        document[parent] = dict(inner) if isinstance(inner, dict) else {}
        document = document[parent]
    document[leaf] = value
