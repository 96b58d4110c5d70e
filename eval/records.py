"""Parts of a result that are told beside its rows: engines, changes in place, costs, ceilings."""

from eval.spec import Frozen


class StepCost(Frozen):
    """What a step of one arm costs, and how that grows with K: step = fixed + K * per token."""

    drafter: str
    concurrency: int
    plain_step_ms: float
    """A step of the verifier alone: its TPOT."""
    step_ms: dict[int, float]
    """By K: TPOT times emitted tokens per step, draft passes and verification together."""
    fixed_ms: float | None
    """The part that does not grow with K. With one K it is taken to be the plain step. None, as the
    next, where a straight line over K would have a negative part: the times are too noisy."""
    per_token_ms: float | None
    """Each further proposed token: one draft pass and one more token to verify."""


class EngineRecord(Frozen):
    """One server that was started for this measurement."""

    name: str
    arm: str
    """What it served when it was started."""
    command: tuple[str, ...]
    start_s: float
    vllm_version: str


class SwapRecord(Frozen):
    """One change of the drafter inside a running engine, or why it was refused."""

    drafter: str
    seconds: float | None = None
    tensors_sha256: str | None = None
    """Over all tensors as the workers read them; equal to that of the files."""
    read_back: tuple[str, ...] = ()
    """Tensors whose values in the engine were compared with the file's."""
    refused: str | None = None


class CeilingPoint(Frozen):
    """The speed that a drafter of this size would bring at an acceptance length."""

    drafter: str
    k: int
    concurrency: int
    acceptance_length: float
    decode_speedup: float
    is_measured: bool
    """True: vLLM accepted at this length. False: acceptance length over step cost, which holds
    because a step costs the same whatever is accepted."""
