"""YAML and `--set key=value` to one frozen model. Precedence: defaults < YAML < --set."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.config.problems import explain
from harness.errors import ConfigError


class Frozen(BaseModel):
    """Base of every configuration model: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Config = TypeVar("Config", bound=Frozen)


def load_config(
    model: type[Config], path: Path | None, overrides: Sequence[str] = (), **values: object
) -> Config:
    """Builds `model` from a YAML file, `--set` overrides and values given by name.

    Args:
        model: The configuration model.
        path: YAML file, or None for defaults alone.
        overrides: `dotted.key=value`, the value in YAML spelling.
        values: Values of command line flags; None means "not given". They win over all else.

    Raises:
        ConfigError: Names the file, the dotted key, the value found and the nearest valid key.
    """
    document = read_yaml(path) if path else {}
    for override in overrides:
        _apply_override(document, override)
    origins = {re.split("[.=]", override)[0]: "--set" for override in overrides}
    for key, value in values.items():
        if value is not None:
            document[key] = value
            origins[key] = "the flags"
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _explain(error, model, path, origins) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML mapping; anything else is a ConfigError that names the file and line."""
    if not path.is_file():
        raise ConfigError(f"expected a YAML file, found none: {path}", "check the path")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        found = type(document).__name__
        raise ConfigError(f"expected a mapping of keys in {path}, found a {found}")
    return document


def dump_yaml(config: BaseModel) -> str:
    """The resolved configuration as YAML that loads back to an equal model."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def flatten(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys: {"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _apply_override(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"expected --set key=value, found: {override!r}")
    *parents, leaf = key.split(".")
    for parent in parents:
        if document.get(parent) is None:
            document[parent] = {}
        document = document[parent]
        if not isinstance(document, dict):
            raise ConfigError(f"--set {key}: {parent!r} is a single value, it has no keys below it")
    try:
        document[leaf] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {key}: not a YAML value: {text!r}") from error


def _explain(
    error: ValidationError, model: type[BaseModel], path: Path | None, origins: Mapping[str, str]
) -> ConfigError:
    """Says what is wrong, and blames the file or the part of the command line that said it."""
    default = str(path) if path else "the command line"
    problems = explain(error, model)
    places = list(dict.fromkeys(origins.get(key, default) for key, _ in problems))
    head = f"{len(problems)} problem(s) in the configuration from {' and '.join(places)}:"
    hint = f"correct {' and '.join(places)}"
    if path and str(path) in places:
        hint += ", or override a key with --set"
    return ConfigError("\n".join([head, *(f"  {line}" for _, line in problems)]), hint)
