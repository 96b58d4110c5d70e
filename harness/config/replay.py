"""What `harness replay` replays: `replay.yaml`."""

from typing import Literal

from pydantic import Field

from harness.config.load import Frozen

MAX_K = 16
DEFAULT_UNEQUAL = {"float32": 0.02, "bfloat16": 0.1}
"""Share of answer tokens that a verifier may judge otherwise than when it wrote them, by the dtype
of the hidden states: near ties fall either way in another batch."""


class ReplayConfig(Frozen):
    """Drafters over the greedy answers of one verifier, from its hidden states; no server."""

    schema_version: Literal[1] = 1
    name: str | None = None
    """Of the run; None: made from verifier and K."""
    drafters: tuple[str, ...] = ()
    """References, as `--drafter` takes them."""
    verifier: str | None = None
    """Reference; None: the verifier of the run that trained the first drafter."""
    corpus: str | None = None
    """Folder of a finished corpus: its answers and hidden states are replayed as they are."""
    prompts: str | None = None
    """A prompt set, as `harness bench` takes it; the verifier answers it once. With neither corpus
    nor prompts: the evaluation prompts of our own."""
    num_prompts: int | None = Field(default=None, ge=1)
    """Prompts (conversations of a corpus) to use, taken evenly over categories; None: all."""
    prompts_seed: int | None = None
    """Shuffles before `num_prompts` are taken; None: the order of the file."""
    k: int = Field(default=3, ge=1, le=MAX_K)
    """Tokens proposed per draft; every smaller K is told, too."""
    max_tokens: int = Field(default=64, ge=2)
    """Answer tokens per turn at most; answers of a corpus are taken as long as they are."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the arithmetic. Auto: float32 on a cpu, the verifier's on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto: cuda where there is a GPU."""
    budget_tokens: int = Field(default=4096, ge=1)
    """Tokens computed at once, padding included: bounds the memory; a longer answer goes alone."""
    confidence: float = Field(default=0.95, gt=0.0, lt=1.0)
    num_resamples: int = Field(default=2000, ge=100)
    max_unequal: float | None = Field(default=None, ge=0.0, le=0.5)
    """Share of answer tokens that may not be the verifier's own greedy ones; None: 0.02 for hidden
    states in float32, 0.1 in a smaller dtype."""
