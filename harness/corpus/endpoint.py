"""A vLLM that somebody else started: where it is, what it serves, what its refusals mean."""

import re
from typing import Literal

import httpx

from eval.answers import Failure
from harness.errors import PrerequisiteError, WorkError
from harness.redaction import redacted
from harness.settings import endpoint_key

_TIMEOUT_S = 10.0
KEY_HINT = (
    "set HARNESS_API_KEY, or HARNESS_API_KEY_FILE to a file that holds the key; "
    "it is neither shown nor kept"
)
_NO_ENTRY = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
_STATUS = re.compile(r"HTTP (\d{3})")
Verdict = Literal["refused", "shut", "failed"]
"""What a failure is due to: the prompt itself, which would be refused again; key, model or address,
so that no prompt would be answered; anything else, which may be over the next time."""
_VERDICTS: dict[str, Verdict] = {
    **dict.fromkeys(("400", "413", "422"), "refused"),
    **dict.fromkeys(("401", "403", "404", "405"), "shut"),
}
"""By HTTP status."""


def judge(failure: Failure) -> Verdict:
    """What is to become of a prompt that got no answer."""
    found = _STATUS.search(failure.reason)
    return _VERDICTS.get(found[1], "failed") if found else "failed"


class Endpoint:
    """The address and the model to ask for, and the key, where the environment holds one.

    Args:
        base_url: Without `/v1`.
        model: The name it serves the verifier under; None where it serves one model only.

    Raises:
        PrerequisiteError: Nothing answers there, or it does not serve that model.
    """

    def __init__(self, base_url: str, model: str | None) -> None:
        self.base_url, self._shown = base_url, redacted(base_url)
        self.api_key = endpoint_key()
        served = self._fetch_models()
        listed = ", ".join(served) or "none"
        if model is None and len(served) != 1:
            raise PrerequisiteError(
                f"{self._shown}: expected one model, found {listed}",
                "name one with --served-model",
            )
        self.model = model or served[0]
        if self.model not in served:
            raise PrerequisiteError(
                f"{self._shown}: expected the model {self.model}, found {listed}",
                "give --served-model as the server lists it, or start it with --served-model-name",
            )

    def require_alive(self) -> None:
        """Raises WorkError if it does not answer any more."""
        try:
            self._fetch_models()
        except PrerequisiteError as error:
            raise WorkError(
                f"the server went away while it was in use: {error.message}",
                "answers so far are kept: run the command again once it is back",
            ) from error

    def _fetch_models(self) -> list[str]:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            response = httpx.get(f"{self.base_url}/v1/models", timeout=_TIMEOUT_S, headers=headers)
            response.raise_for_status()
            return [str(model["id"]) for model in response.json()["data"]]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            is_shut = isinstance(error, httpx.HTTPStatusError) and (
                error.response.status_code in _NO_ENTRY
            )
            start = "start one with: vllm serve <verifier> --generation-config vllm"
            raise PrerequisiteError(
                f"{self._shown}/v1/models: expected a vLLM server, found "
                f"{type(error).__name__}: {redacted(str(error))}",
                KEY_HINT if is_shut else start,
            ) from error
