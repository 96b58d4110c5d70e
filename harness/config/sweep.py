"""What `harness sweep` searches, for what, with which budget: `sweep.yaml`."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from harness.config.load import Frozen

Metric = Literal["decode_speedup", "acceptance_length", "val_loss", "train_s", "num_parameters"]
Direction = Literal["maximize", "minimize"]
_OF_ACCEPTANCE = {"decode_speedup", "acceptance_length"}
"""Figures that come from what a drafter accepts; the more, the better."""
_LEAST_HYPERBAND_TRIALS = 30
"""Hyperband needs about 10 trials to start each of its 3 brackets."""


class _Axis(Frozen):
    """What all dimensions have."""

    when: dict[str, Any] = Field(
        default_factory=dict,
        description="Only searched where other keys of the space have these values.",
    )


class FloatAxis(_Axis):
    """A real number between two ends, both included."""

    type: Literal["float"]
    low: float
    high: float
    log: bool = Field(default=False, description="Search the logarithm.")
    step: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _ends_in_order(self) -> "FloatAxis":
        _require_order(self.low, self.high, is_log=self.log, has_step=self.step is not None)
        return self


class IntAxis(_Axis):
    """A whole number between two ends, both included."""

    type: Literal["int"]
    low: int
    high: int
    log: bool = Field(default=False, description="Search the logarithm.")
    step: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _ends_in_order(self) -> "IntAxis":
        _require_order(self.low, self.high, is_log=self.log, has_step=self.step != 1)
        return self


class ChoiceAxis(_Axis):
    """One of some values, of any kind that the key takes."""

    type: Literal["categorical"]
    choices: tuple[Any, ...] = Field(min_length=1)

    @field_validator("choices")
    @classmethod
    def _each_once(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if len({repr(choice) for choice in value}) != len(value):
            raise ValueError("expected each choice once")
        return value


Axis = Annotated[FloatAxis | IntAxis | ChoiceAxis, Field(discriminator="type")]


class Objective(Frozen):
    """A figure to be made large or small."""

    metric: Metric = "decode_speedup"
    direction: Direction | None = None
    """None: speedup and acceptance length are maximised, all else is minimised."""

    @property
    def resolved(self) -> Direction:
        """The direction that counts."""
        default: Direction = "maximize" if self.metric in _OF_ACCEPTANCE else "minimize"
        return self.direction or default


class Limits(Frozen):
    """What a drafter may cost at most; trials beyond are recorded as infeasible."""

    max_parameters: Annotated[int, Field(ge=1)] | None = None
    """Values of the drafter, its tables included."""
    max_train_s: Annotated[float, Field(gt=0)] | None = None
    """Wall time of the training in seconds."""


class Sampler(Frozen):
    """Who proposes points."""

    type: Literal["tpe", "random", "qmc", "grid"] = "tpe"
    seed: Annotated[int, Field(ge=0)] = 0
    num_startup: Annotated[int, Field(ge=1)] = 5
    """Trials that TPE takes at random before it models anything."""


class Halving(Frozen):
    """Successive halving: of the trials that reach a rung, 1 in `reduction_factor` goes on."""

    type: Literal["successive_halving"]
    min_resource: Annotated[int, Field(ge=1)]
    """Checkpoints at the first rung; the next are `reduction_factor` times as far apart. An epoch
    is one, with `checkpoint_freq: 0.5` it is two."""
    reduction_factor: Annotated[int, Field(ge=2)]


class Wilcoxon(Frozen):
    """Signed-rank test against the best trial, paired by checkpoint and prompt of validation."""

    type: Literal["wilcoxon"]
    p_threshold: Annotated[float, Field(gt=0, lt=1)] = 0.1
    min_prompts: Annotated[int, Field(ge=2)] = 8


class Hyperband(Frozen):
    """Several halvings at once; only worth it with many trials."""

    type: Literal["hyperband"]
    min_resource: Annotated[int, Field(ge=1)]
    max_resource: Annotated[int, Field(ge=1)]
    reduction_factor: Annotated[int, Field(ge=2)] = 3


class NoPruning(Frozen):
    """Every trial is trained to its end."""

    type: Literal["none"] = "none"


Pruner = Annotated[Halving | Wilcoxon | Hyperband | NoPruning, Field(discriminator="type")]


class SweepConfig(Frozen):
    """A search over trainings of one verifier and corpus, and over how they are served."""

    schema_version: Literal[1] = 1
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]*$")
    train: str
    """The base training: a YAML file, below the project folder or absolute. Trial 0 is it."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of the base training that every trial has otherwise: epochs, corpus."""
    bench: str | None = None
    """How survivors are measured: a YAML file of `harness bench`; None: its defaults."""
    bench_fixed: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of the bench that are otherwise here."""
    space: dict[str, Axis] = Field(min_length=1)
    """Dotted keys of the training, and `k`, to what may be tried."""
    objectives: tuple[Objective, ...] = Field(default=(Objective(),), min_length=1)
    """One, or several for a Pareto front."""
    limits: Limits = Limits()
    k: Annotated[int, Field(ge=1, le=32)] = 3
    """Tokens proposed per draft, where `space` does not search it."""
    baselines: tuple[dict[str, Any], ...] = ()
    """Points that are run first, after the base: keys of the space; others as in the base."""
    n_trials: Annotated[int, Field(ge=1)] = 20
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds of one call after which no further trial is started."""
    max_failures: Annotated[int, Field(ge=1)] = 3
    """Failed trials at which the sweep stops."""
    max_retries: Annotated[int, Field(ge=0, le=2)] = 2
    """How often a trial whose process died goes on from its last checkpoint."""
    oom_halves_seq_len: bool = False
    """A trial that ran out of memory is tried again with half of `total_seq_len`."""
    sampler: Sampler = Sampler()
    pruner: Pruner = NoPruning()
    workers: Annotated[int, Field(ge=1)] | None = None
    """Trials at once; None: `trials_per_gpu` for each visible GPU, one on a CPU."""
    trials_per_gpu: Annotated[int, Field(ge=1)] = 1
    """Trials that train on one GPU of this machine at once: small drafters leave most of it idle.
    Say as many as fit together: they start at the same time, before any has taken its memory."""
    storage: str | None = None
    """An RDB URL of Optuna; None: HARNESS_SWEEP_STORAGE names it, else a journal file in
    `mlruns/sweeps/<name>/`."""
    num_served: Annotated[int, Field(ge=0)] = 3
    """Best trials that are measured in vLLM beside the base."""
    num_final: Annotated[int, Field(ge=1)] = 1
    """Of these, the best that are measured once more to `final_precision`."""
    final_precision: Annotated[float, Field(gt=0)] | None = None
    """Relative half width of the intervals of the last measurement; None: there is no second."""
    champion: str | None = None
    """A registered model whose champion is measured alongside in the last measurement."""
    num_cost_prompts: Annotated[int, Field(ge=2)] = 4
    """Prompts from which the cost of a step of an architecture is measured."""

    @property
    def is_multi_objective(self) -> bool:
        """Whether there is a front of best trials instead of one."""
        return len(self.objectives) > 1

    @property
    def needs_costs(self) -> bool:
        """Whether an objective is predicted from what a step costs in vLLM."""
        return any(objective.metric == "decode_speedup" for objective in self.objectives)

    @property
    def needs_replay(self) -> bool:
        """Whether an objective comes from what a replay says of a checkpoint."""
        return any(objective.metric in _OF_ACCEPTANCE for objective in self.objectives)

    @model_validator(mode="after")
    def _each_objective_once(self) -> "SweepConfig":
        metrics = [objective.metric for objective in self.objectives]
        if len(set(metrics)) != len(metrics):
            raise ValueError("expected each objective once")
        return self

    @model_validator(mode="after")
    def _pruner_fits(self) -> "SweepConfig":
        kind, metric = self.pruner.type, self.objectives[0].metric
        if kind == "none":
            return self
        if self.is_multi_objective:
            raise ValueError(
                f"pruner {kind} needs a single objective, found {len(self.objectives)}; put one of "
                "them into limits, or use pruner: none"
            )
        if metric in {"train_s", "num_parameters"}:
            raise ValueError(f"pruner {kind}: {metric} says nothing between epochs")
        if kind == "wilcoxon" and metric == "val_loss":
            raise ValueError("pruner wilcoxon pairs acceptance by prompt; val_loss has no prompts")
        if kind == "hyperband" and self.n_trials < _LEAST_HYPERBAND_TRIALS:
            raise ValueError(
                f"pruner hyperband needs about 10 trials in each bracket: expected n_trials of "
                f"{_LEAST_HYPERBAND_TRIALS} or more, found {self.n_trials}; use successive_halving"
            )
        return self

    @model_validator(mode="after")
    def _grids_are_finite(self) -> "SweepConfig":
        if self.sampler.type != "grid":
            return self
        for key, axis in self.space.items():
            if isinstance(axis, FloatAxis) and axis.step is None:
                raise ValueError(f"sampler grid: {key} needs a step")
            if axis.when:
                raise ValueError(f"sampler grid: {key} cannot depend on another key")
        return self


def _require_order(low: float, high: float, *, is_log: bool, has_step: bool) -> None:
    if low > high:
        raise ValueError(f"expected low <= high, found {low} > {high}")
    if is_log and low <= 0:
        raise ValueError(f"log needs low above 0, found {low}")
    if is_log and has_step:
        raise ValueError("log and step exclude each other")
