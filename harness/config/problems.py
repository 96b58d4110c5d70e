"""What a validation found, in our words: the key, what was expected there, and what was found."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of keys",
    "model": "a mapping of keys",
    "path": "a path",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
Problem = Mapping[str, Any]
"""As pydantic lists them: type, loc, msg, input, ctx."""


def explain(error: ValidationError, model: type[BaseModel]) -> list[tuple[str, str]]:
    """The problems in their order, each as the outermost key and a line that names the whole key.

    Args:
        error: What pydantic raised.
        model: The model that was built, for the nearest valid key.
    """
    problems = _without_consequences([dict(problem) for problem in error.errors()])
    lines: list[tuple[str, str]] = []
    for problem in problems:
        key = ".".join(str(part) for part in problem["loc"])
        lines.append((key.partition(".")[0], f"{key or 'config'}: {_describe(problem, model)}"))
    return lines


def expectation(problem: Problem) -> str:
    """One problem without its key: `expected at least 1, found 0`, or what a rule of ours says."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    expected = _expected(kind, context)
    if expected is None:
        message = problem["msg"]
        return f"{message[:1].lower()}{message[1:]}, found {problem['input']!r}"
    return f"expected {expected}, found {problem['input']!r}"


def _expected(kind: str, context: Mapping[str, Any]) -> str | None:
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{words} {context[bound]:g}"
    if kind in {"literal_error", "enum"}:
        return str(context["expected"]).replace("'", "")
    if kind == "too_short":
        return f"{context['min_length']} or more of them"
    return (
        _KINDS.get(kind.partition("_")[0])
        if kind.endswith(("_type", "_parsing", "_from_float"))
        else None
    )


def _describe(problem: Problem, model: type[BaseModel]) -> str:
    if problem["type"] == "extra_forbidden":
        near = _nearest(model, problem["loc"])
        return f"unknown key{f'; did you mean {near}?' if near else ''}"
    if problem["type"] == "missing":
        return "required, but not given"
    return expectation(problem)


def _without_consequences(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leaves out that a list is too short where that is so because an entry was refused."""
    places = [problem["loc"] for problem in problems]
    return [
        problem
        for problem in problems
        if problem["type"] != "too_short"
        or not any(
            len(loc) > len(problem["loc"]) and loc[: len(problem["loc"])] == problem["loc"]
            for loc in places
        )
    ]


def _nearest(model: type[BaseModel], location: tuple[int | str, ...]) -> str | None:
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    close = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1, cutoff=0.5)
    return close[0] if close else None
