"""What can go wrong while measuring. The harness shows message and hint, without a traceback."""

from pathlib import Path


class EvalError(Exception):
    """A measurement that could not be made, or not be believed."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def cause(self) -> str:
        """For a list or a warning: the line of a server's log that says why, or the first one."""
        named = (line for line in self.message.splitlines() if line.startswith("cause: "))
        return next(named, self.message.partition("\n")[0])


class SpecError(EvalError):
    """The request itself makes no sense: missing prompts, a bad value, an unknown method."""


class ServerStartError(EvalError):
    """The server never became ready, or went away unasked.

    The message holds the root cause line and the last 40 lines of its log.
    """

    def __init__(self, message: str, hint: str | None = None, log_path: Path | None = None) -> None:
        super().__init__(message, hint)
        self.log_path = log_path


class RequestError(EvalError):
    """A request failed or never ended."""


class MeasurementError(EvalError):
    """The numbers contradict each other or do not exist: no drafts, foreign requests."""


class SwapRefusedError(EvalError):
    """The engine cannot take this drafter in place; a fresh engine is needed."""


class VerifierError(EvalError):
    """The verifier's own states or answers cannot be had: it does not load, or overflows."""


class MemoryShortError(VerifierError):
    """One forward pass needs more memory than there is; fewer tokens may fit."""
