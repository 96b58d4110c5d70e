"""What a drafter must show to become champion: `policy.yaml`."""

from typing import Literal

from pydantic import Field

from harness.config.load import Frozen


class Policy(Frozen):
    """Gates of a promotion. A gate that is None or false is not asked."""

    schema_version: Literal[1] = 1
    min_acceptance_length: float | None = Field(default=None, ge=1.0)
    """Tokens per draft, bonus included. The low end of the interval must reach it."""
    min_decode_speedup: float | None = Field(default=None, gt=0.0)
    """Baseline TPOT over drafter TPOT. The low end of the interval must reach it."""
    require_lossless: bool = True
    """Greedy answers equal the baseline's, but for near ties."""
    require_verify_clean: bool = True
    """`harness verify` finds no error in the files, tensors read."""
    require_provenance: bool = True
    """The training run names verifier, corpus and code by digest, and where head_dim came from."""
    min_prompts: int = Field(default=1, ge=1)
    """Prompts that the figures must rest on."""
    max_evidence_age_days: float | None = Field(default=30.0, gt=0.0)
    """Days since the bench ended."""
    rank_by: Literal["acceptance_length", "decode_speedup"] = "acceptance_length"
    """The figure that picks one of several candidates, and the K that stands for each."""
