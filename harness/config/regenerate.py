"""How a verifier's answers are made: sampling, and the server that makes them."""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from eval.device import resolve_server
from eval.spec import Sampling, ServerSpec
from harness.config.load import Frozen

_PINNED = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
"""Sent with every request: another's server may have been started with other defaults."""


class RegenerateConfig(Frozen):
    """How answers are made. What changes them is part of the plan, what changes the pace is not."""

    max_tokens: int = Field(default=64, ge=2, description="New tokens per answer at most.")
    temperature: float = Field(default=0.0, ge=0, description="0: the likeliest token each time.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Mass of the tokens drawn from.")
    top_k: int | None = Field(default=None, ge=1, description="Tokens drawn from; none: all.")
    seed: int = Field(default=0, description="Sent with every request.")
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="For the chat template, as in {thinking: true}."
    )
    concurrency: int = Field(default=32, ge=1, description="Requests under way at once.")
    max_failed: int = Field(
        default=0, ge=0, description="Prompts that may stay without an answer after three tries."
    )
    request_timeout_s: float = Field(default=600.0, gt=0, description="Seconds for one answer.")

    endpoint: str | None = Field(
        default=None, description="Address of a vLLM that runs already, as in http://host:8000."
    )
    served_model: str | None = Field(
        default=None, description="Its name there; none: the only model it serves."
    )

    dtype: str | None = Field(
        default=None, description="None: float32 on CPU, the verifier's own on a GPU."
    )
    max_model_len: int | None = Field(
        default=None, ge=16, description="Prompt and answer tokens at most."
    )
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs per verifier.")
    data_parallel_size: int = Field(
        default=1, ge=1, description="Verifiers behind one port, each on GPUs of its own."
    )
    enable_expert_parallel: bool = Field(
        default=False, description="Whole experts of an MoE on each GPU, not slices of all."
    )
    trust_remote_code: bool = Field(
        default=False, description="Run the code in the verifier's folder."
    )
    reasoning_parser: str | None = Field(
        default=None,
        description="vLLM's, as in kimi_k2: reasoning is then kept apart from the answer's text.",
    )
    port: int | None = Field(default=None, ge=1, le=65535, description="None: a free one.")

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"expected http://host:port, found {value!r}")
        return value and value.rstrip("/").removesuffix("/v1")

    @model_validator(mode="after")
    def _a_server_is_ours_or_anothers(self) -> "RegenerateConfig":
        ours = {
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "port": self.port,
            "reasoning_parser": self.reasoning_parser,
        }
        if self.endpoint and (given := [name for name, value in ours.items() if value is not None]):
            raise ValueError(
                f"{', '.join(given)}: decided by whoever started the server at {self.endpoint}"
            )
        if self.served_model and not self.endpoint:
            raise ValueError("served_model: needs an endpoint")
        return self

    @property
    def sampling(self) -> Sampling:
        """What is sent with every request."""
        return Sampling(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)

    @property
    def request_fields(self) -> dict[str, Any]:
        """More fields of every request; tools are never offered."""
        fields: dict[str, Any] = {**_PINNED, "top_p": self.top_p}
        if self.top_k is not None:
            fields["top_k"] = self.top_k
        if self.chat_template_kwargs:
            fields["chat_template_kwargs"] = self.chat_template_kwargs
        return fields

    def build_server_spec(self, verifier: Path) -> ServerSpec:
        """The server that answers: as many sequences at once as requests under way."""
        parser = ("--reasoning-parser", self.reasoning_parser) if self.reasoning_parser else ()
        spec = ServerSpec(
            verifier=verifier,
            dtype=self.dtype,
            max_model_len=self.max_model_len,
            max_num_seqs=self.concurrency,
            tensor_parallel_size=self.tensor_parallel_size,
            data_parallel_size=self.data_parallel_size,
            enable_expert_parallel=self.enable_expert_parallel,
            trust_remote_code=self.trust_remote_code,
            extra_args=parser,
            port=self.port,
        )
        return resolve_server(spec)

    def plan(self, spec: ServerSpec | None) -> dict[str, Any]:
        """What the answers depend on. Keys that came later stand only where they change something.

        Args:
            spec: The server that is started; None with an endpoint.
        """
        planned: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "dtype": spec.dtype if spec else None,
            "max_model_len": spec.max_model_len if spec else None,
        }
        later = (
            *("top_p", "top_k", "seed", "chat_template_kwargs", "reasoning_parser"),
            "served_model",
        )
        fields = type(self).model_fields
        for name in later:
            value = getattr(self, name)
            if value != fields[name].get_default(call_default_factory=True):
                planned[name] = value
        return planned if spec else {**planned, "is_endpoint": True}
