"""Every knob of a training, typed and described. What is not given is None, never a sentinel.

Where a value may come from elsewhere (the parent drafter, the verifier, the hardware), None or
`auto` says so, and `harness.training.shape` or the worker resolves it and logs what it took.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from harness.config.load import Frozen

LossName = Literal["kl_div", "rkl", "jsd", "ce", "tv", "nla", "lk_hybrid"]
Count = Annotated[int, Field(ge=1)]


class TrainConfig(Frozen):
    """One training of one EAGLE-3 drafter."""

    # What goes in.
    verifier: str = Field(
        description="Reference of the verifier: a folder, package:<dist> or hf:<org>/<repo>[@rev]."
    )
    corpus: str = Field(
        description="Folder that `harness data extract` wrote, relative to the project or absolute."
    )
    states_endpoint: str | None = Field(
        default=None,
        description="Address of `harness data serve`, http://host:port, which makes the hidden "
        "states of an online corpus; both must see the corpus under one path.",
    )
    name: str | None = Field(
        default=None, description="Name of the run; made of verifier, head_dim and lr else."
    )
    finetune_from: str | None = Field(
        default=None, description="Reference of the parent drafter; none trains from scratch."
    )
    vocab_policy: Literal["keep", "rebuild"] = Field(
        default="keep",
        description="Draft vocabulary when finetuning: the parent's, or one from this corpus.",
    )
    allow_fresh: tuple[str, ...] = Field(
        default=(),
        description="Tensors that may start fresh when the parent lacks them (speculators names).",
    )

    # The drafter's shape; None: the parent's, else what the description says.
    head_dim: Count | None = Field(
        default=None,
        description="Columns per attention head. Required from scratch: it is never inferred.",
    )
    num_heads: Count | None = Field(default=None, description="Query heads; else the verifier's.")
    num_kv_heads: Count | None = Field(
        default=None, description="Key and value heads; else the verifier's."
    )
    num_layers: Count | None = Field(default=None, description="Decoder layers; else 1.")
    intermediate_size: Count | None = Field(
        default=None, description="Width of the MLP; else the verifier's, which an MoE lacks."
    )
    aux_layer_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        description="Verifier layers whose inputs feed the drafter, ascending; else the corpus's.",
    )
    draft_vocab_size: Count | None = Field(
        default=None,
        description="Tokens the drafter can propose; else 32,000 or the verifier's if fewer.",
    )
    draft_vocab: str | None = Field(
        default=None,
        description="Folder that `harness data vocab` wrote: which tokens those are; else the most "
        "frequent of the corpus, or the parent's.",
    )
    norm_before_residual: bool | None = Field(
        default=None, description="The residual is the normed hidden state; else true."
    )
    norm_before_fc: bool | None = Field(
        default=None, description="One norm over the concatenated aux states; else true."
    )
    fc_norm: bool | None = Field(
        default=None, description="One norm per aux state (EAGLE 3.1); else false."
    )
    norm_output: bool | None = Field(
        default=None, description="The normed output feeds the next draft step; else true."
    )
    rope_parameters: dict[str, Any] | None = Field(
        default=None,
        description="transformers 5 spelling, e.g. {rope_type: default, rope_theta: "
        "10000.0}; else the verifier's.",
    )
    sliding_window: Count | Literal["full"] | None = Field(
        default=None, description="Attention window in tokens, or full; else full."
    )

    # The arithmetic.
    ttt_steps: Annotated[int, Field(ge=1, le=16)] = Field(
        default=3, description="Draft steps unrolled in training (training-time test)."
    )
    ttt_step_loss_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="Weight of each further step's loss against the one before."
    )
    loss: LossName | dict[LossName, float] = Field(
        default="kl_div", description="A loss of speculators, or weights of several."
    )
    noise: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="Width of the uniform noise around 0 that is added to the aux hidden states "
        "in training, not in validation (EAGLE's; 0.05 is usual). 0: none.",
    )
    train_lm_head: bool = Field(
        default=False, description="Unfreeze the output head, which speculators keeps frozen."
    )
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw", description="muon needs an accelerator: it is 100 times slower on a CPU."
    )
    lr: Annotated[float, Field(gt=0)] = Field(default=1e-3, description="Peak learning rate.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.01, description="Of AdamW, per step, times lr."
    )
    muon_lr: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Peak learning rate of the matrices under muon; else lr."
    )
    scheduler: Literal["linear", "cosine", "none"] = Field(
        default="linear", description="Decay of lr to 0 over all steps; none keeps it."
    )
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.01, description="Fraction of all steps over which lr rises from 0."
    )
    epochs: Count = Field(default=5, description="Passes over the corpus.")
    max_steps: Count | None = Field(
        default=None, description="Optimiser steps after which to stop, epochs or not."
    )
    total_seq_len: Annotated[int, Field(ge=16)] = Field(
        default=2048, description="Tokens per step; conversations are packed into them."
    )
    val_ratio: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1, description="Fraction of the corpus, its last rows, kept for validation."
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=42, description="Of weights and packing.")

    # The machine; auto and None: by what the worker finds there.
    device: Literal["auto", "cpu"] = Field(
        default="auto", description="cpu leaves an accelerator alone."
    )
    nproc: Count = Field(
        default=1,
        description="Processes that train together (torchrun), one a GPU, the first ones of "
        "CUDA_VISIBLE_DEVICES. Each takes total_seq_len tokens a step; gradients are averaged.",
    )
    sharding: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="With nproc: every process holds the whole drafter (ddp), or a part of it and "
        "of its optimiser (fsdp), which takes less memory and more traffic.",
    )
    attention: Literal["auto", "simple_flex_attention", "sdpa", "eager"] = Field(
        default="auto", description="Attention code of the drafter; auto: flex, on a CPU sdpa."
    )
    loss_implementation: Literal["auto", "fused", "eager"] = Field(
        default="auto",
        description="auto: eager. fused (Triton) needs less memory where it compiles, which it did "
        "not with torch 2.11 on an H200.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Of hidden states and autocast; auto: bfloat16, on a CPU float32. Master "
        "weights are float32, checkpoints bfloat16 (speculators).",
    )
    num_workers: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Processes that read the corpus; else 4, on a CPU 0."
    )
    gradient_checkpointing: bool = Field(default=False, description="Less memory, a third slower.")

    # What is kept.
    log_every_steps: Count = Field(default=1, description="Steps per metric point.")
    checkpoint_freq: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="Epochs per checkpoint; below 1 also within an epoch, for resume: replayed, "
        "and replaced at its end.",
    )
    keep_best: Count = Field(
        default=2,
        description="Checkpoints kept on disk beside the last and the registered: those with "
        "the highest acceptance length in validation.",
    )
    upload_below_mb: Annotated[float, Field(ge=0)] = Field(
        default=200.0, description="Checkpoints below so many MB are logged as artifacts, too."
    )
    replay_tokens: Annotated[int, Field(ge=0)] = Field(
        default=16384,
        description="Answer tokens of the validation rows, at most, over which each saved "
        "checkpoint is replayed: its acceptance length, and whether the file computes what was "
        "trained. 0: no replay, and the trainer's estimate ranks.",
    )
    replay_k: Count | None = Field(
        default=None,
        description="Tokens proposed per draft in the replay, as they will be in serving; else "
        "ttt_steps.",
    )
    eval_prompts: str | None = Field(
        default=None,
        description="A prompt set, as `harness bench` takes it, on which checkpoints are replayed "
        "as well; the verifier answers it once, before the first training.",
    )
    eval_num_prompts: Count | None = Field(
        default=None, description="So many of them, taken evenly over categories; else all."
    )
    eval_max_tokens: Annotated[int, Field(ge=2)] = Field(
        default=64, description="Answer tokens a turn of the evaluation prompts, at most."
    )
    smoke: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="A tiny training first; auto: where the training would take over 30 minutes.",
    )

    @field_validator("checkpoint_freq")
    @classmethod
    def _whole_epochs(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError("above 1 it counts epochs and must be a whole number")
        return value

    @field_validator("aux_layer_ids")
    @classmethod
    def _ascending_layers(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or list(value) != sorted(set(value))):
            raise ValueError("must be ascending and without repeats: vLLM sorts them")
        return value

    @field_validator("loss")
    @classmethod
    def _positive_weights(cls, value: str | dict[str, float]) -> str | dict[str, float]:
        if isinstance(value, dict) and (not value or min(value.values()) <= 0):
            raise ValueError("weights must be above 0")
        return value

    @model_validator(mode="after")
    def _heads_divide(self) -> "TrainConfig":
        if self.num_heads and self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        return self

    @model_validator(mode="after")
    def _one_norm_before_fc(self) -> "TrainConfig":
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other")
        return self

    @model_validator(mode="after")
    def _policy_needs_parent(self) -> "TrainConfig":
        if self.finetune_from is None and (self.vocab_policy == "rebuild" or self.allow_fresh):
            raise ValueError("vocab_policy and allow_fresh need finetune_from")
        return self

    @model_validator(mode="after")
    def _sharding_needs_a_gang(self) -> "TrainConfig":
        if self.sharding == "fsdp" and self.nproc == 1:
            raise ValueError("sharding fsdp shares a drafter between processes: nproc is 1")
        return self

    @property
    def upload_below_bytes(self) -> int:
        """The upload bound in bytes."""
        return int(self.upload_below_mb * 1e6)
