"""How values are spelled where a store knows only text: params, tags, failures, artifact paths."""

import json
import math
from pathlib import PurePosixPath

from harness.errors import HarnessError, TrackingError
from harness.redaction import redacted

PARAM_LIMIT_CHARACTERS = 6000
"""Source: MAX_PARAM_VAL_LENGTH, mlflow/utils/validation.py, 3.17."""
TAG_LIMIT_CHARACTERS = 8000
"""Source: MAX_TAG_VAL_LENGTH, same place."""
_REASON_CHARACTERS = 500


def param_text(value: object) -> str:
    """A value as a param: text as it is, None as `none`, true/false, lists and maps as JSON.

    Secrets are struck out.
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | dict):
        return redacted(json.dumps(value, default=str, ensure_ascii=False))
    return redacted(str(value))


def tag_text(value: object) -> str:
    """A value as a tag; text that MLflow would cut silently ends in a mark that says so."""
    text = param_text(value)
    if len(text) <= TAG_LIMIT_CHARACTERS:
        return text
    mark = f" ... [cut, {len(text)} characters]"
    return text[: TAG_LIMIT_CHARACTERS - len(mark)] + mark


def finite_number(value: object) -> float | None:
    """The number a param stands for; None for booleans, text, NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def failure_text(error: BaseException) -> str:
    """Why a run ended badly, on one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = error.message if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
    return " ".join(redacted(text).split())[:_REASON_CHARACTERS]


def require_artifact_path(name: str) -> str:
    """Refuses artifact paths that leave the run's own folder.

    Raises:
        TrackingError: For an absolute path, a `..` part, a backslash or an empty name.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise TrackingError(
            f"expected a relative artifact path below the run's folder, found {name!r}",
            "use a path such as figures/acceptance.html",
        )
    return str(path)
