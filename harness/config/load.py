"""YAML and `--set key=value` to one frozen model. Precedence: defaults < YAML < --set."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

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
    for key, value in values.items():
        if value is not None:
            document[key] = value
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ConfigError(_explain(error, model, path), _hint(path)) from error


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


def _explain(error: ValidationError, model: type[BaseModel], path: Path | None) -> str:
    where = str(path) if path else "the command line"
    lines = [f"{error.error_count()} problem(s) in the configuration from {where}:"]
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = _nearest(model, problem["loc"])
            lines.append(f"  {key}: unknown key{f'; did you mean {near}?' if near else ''}")
        elif problem["type"] == "missing":
            lines.append(f"  {key}: required, but not given")
        else:
            lines.append(f"  {key or 'config'}: {problem['msg']}, found {problem['input']!r}")
    return "\n".join(lines)


def _nearest(model: type[BaseModel], location: tuple[int | str, ...]) -> str | None:
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    close = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1, cutoff=0.5)
    return close[0] if close else None


def _hint(path: Path | None) -> str:
    return f"correct {path}, or override a key with --set" if path else "correct the flags"
