"""The failures a user can meet: one class per exit code, each carrying the way out.

A message says what was expected, what was found and where; the hint says what to do.
"""

from typing import ClassVar


class HarnessError(Exception):
    """A failure that is shown as message and hint, without a traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class WorkError(HarnessError):
    """Work that was started and failed: a training, an extraction, a server."""


class TrackingError(HarnessError):
    """The MLflow store could not be read or written."""


class ConfigError(HarnessError):
    """What was asked for makes no sense: a bad key, value, path or reference."""

    exit_code = 2


class PrerequisiteError(HarnessError):
    """Something this machine lacks: a package, a tool, disk space, a device."""

    exit_code = 3


class CheckError(HarnessError):
    """A check of a drafter, corpus or store said no."""

    exit_code = 4


class PromotionError(HarnessError):
    """A promotion was refused by its policy or lost against another promoter."""

    exit_code = 4
