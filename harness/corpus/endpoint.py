"""A vLLM that somebody else started: where it is, what it serves, whether it still answers."""

import httpx

from harness.errors import PrerequisiteError, WorkError
from harness.redaction import redacted

_TIMEOUT_S = 10.0


class Endpoint:
    """The address and the model to ask for.

    Args:
        base_url: Without `/v1`.
        model: The name it serves the verifier under; None where it serves one model only.

    Raises:
        PrerequisiteError: Nothing answers there, or it does not serve that model.
    """

    def __init__(self, base_url: str, model: str | None) -> None:
        self.base_url, self._shown = base_url, redacted(base_url)
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
        try:
            response = httpx.get(f"{self.base_url}/v1/models", timeout=_TIMEOUT_S)
            response.raise_for_status()
            return [str(model["id"]) for model in response.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise PrerequisiteError(
                f"{self._shown}/v1/models: expected a vLLM server, found "
                f"{type(error).__name__}: {error}",
                "start one with: vllm serve <verifier> --generation-config vllm",
            ) from error
