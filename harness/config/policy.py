"""What a drafter must show to become champion: `policy.yaml`."""

from typing import Literal

from pydantic import Field, model_validator

from harness.config.load import Frozen

Figure = Literal["acceptance_length", "decode_speedup"]


class Policy(Frozen):
    """Gates of a promotion. A gate that is None or false is not asked.

    Of a figure with an interval, the low end must reach what is asked for.
    """

    schema_version: Literal[1] = 1
    model: str | None = None
    """The registered model, where `--name` does not say."""
    bench: str | None = None
    """bench.yaml, seen from the policy's folder: how candidates and champion are measured together
    where no bench did so. None: as `harness bench` does without a file."""
    min_acceptance_length: float | None = Field(default=None, gt=1.0)
    """Tokens per draft, bonus included. 1 is what no drafter can miss, so it asks for more."""
    min_decode_speedup: float | None = Field(default=None, gt=0.0)
    """Baseline TPOT over drafter TPOT."""
    min_acceptance_gain: float | None = None
    """Acceptance length less the champion's, paired by prompt, in tokens. Below 0: may be less."""
    min_speedup_ratio: float | None = Field(default=None, gt=0.0)
    """Decode speedup over the champion's, paired by prompt. 0.98: at most 2 % slower."""
    max_category_regression: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Share of the champion's figure (the one of `rank_by`) that any category may lose."""
    require_lossless: bool = True
    """Greedy answers equal the baseline's, but for near ties."""
    require_verify_clean: bool = True
    """`harness verify` finds no error in the files, tensors read."""
    require_parity: bool = False
    """A replay of the bench's outputs without a server accepted the same tokens."""
    require_provenance: bool = True
    """The training run names verifier, corpus and code by digest, and where head_dim came from."""
    require_unflagged: bool = False
    """The bench raised no flag over the candidate's figures."""
    vllm_version: str | None = None
    """The vLLM that the bench ran in. None: any, but one."""
    hardware: str | None = None
    """Part of the name of the processor or GPU that the bench ran on. None: any."""
    min_prompts: int = Field(default=1, ge=1)
    """Prompts that the figures must rest on."""
    max_evidence_age_days: float | None = Field(default=30.0, gt=0.0)
    """Days since the bench ended."""
    require_approval: bool = False
    """A person approves the very digest (`harness registry approve`) before the alias moves."""
    rank_by: Figure = "acceptance_length"
    """The figure that picks one of several candidates, and the K that stands for each."""

    @model_validator(mode="after")
    def _asks_for_a_figure(self) -> "Policy":
        if self.min_acceptance_length is None and self.min_decode_speedup is None:
            raise ValueError(
                "expected min_acceptance_length or min_decode_speedup, found neither: any drafter "
                "would pass"
            )
        return self
