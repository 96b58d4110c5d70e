"""What a replay found of a checkpoint, in the words of the store: metrics, and its part of the gap.

Without torch: the replay itself is `harness.training.validation`.
"""

from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from eval.progress import ProgressFn
from eval.prompts import digest_prompts
from harness.settings import Settings, share_cores
from harness.tracking import names
from harness.tracking.figures import training_curves
from harness.tracking.overview import describe_training
from harness.tracking.resolve import best_checkpoint
from harness.tracking.run import Run
from harness.tracking.store import Store
from harness.tracking.waterfall import FIGURE_NAME, CheckpointGap, Gap, draw_gap, read_gap
from harness.training.checkpoints import estimate_acceptance_length
from harness.training.messages import Saved
from harness.training.plan import TrainPlan

if TYPE_CHECKING:
    from eval.sequences import Row
    from harness.training.validation import CheckpointReplay, Lengths, ValidationReplay

ReplayFn = Callable[[Saved, str], Generator[None, None, "CheckpointReplay"]]
"""A checkpoint and the dtype of its training -> the replay in slices, its result at the end."""


def answer_prompts(plan: TrainPlan, settings: Settings, progress: ProgressFn) -> "list[Row]":
    """What the verifier says to the evaluation prompts, if the training has any."""
    share_cores()
    if not plan.eval_prompts:
        return []
    # Late: torch takes seconds, which a training without such prompts need not wait for.
    from harness.training.evaluation import record_evaluation  # noqa: PLC0415

    return record_evaluation(plan, settings, progress)


def build_replay(plan: TrainPlan, prompt_rows: "list[Row]") -> ReplayFn | None:
    """The replay of this training's checkpoints; None where none is asked for."""
    if not plan.config.replay_tokens:
        return None

    @cache
    def build() -> "ValidationReplay":
        # Late: torch takes seconds, in which the child may start already.
        from harness.training.validation import ValidationReplay  # noqa: PLC0415

        return ValidationReplay(plan, prompt_rows)

    def replay(saved: Saved, dtype: str) -> Generator[None, None, "CheckpointReplay"]:
        return (yield from build().replay(saved, dtype))

    return replay


def validation_figures(found: "CheckpointReplay") -> dict[str, float]:
    """Figures on the validation rows."""
    figures = {
        names.METRIC_VAL_REPLAYED_ACC.format(step=step.step): step.replayed
        for step in (found.agreement.steps if found.agreement else ())
    }
    return figures | _named(
        found.in_domain, names.METRIC_VAL_ACCEPTANCE_LENGTH, names.METRIC_VAL_EVERYWHERE_LENGTH
    )


def prompt_figures(found: "CheckpointReplay") -> dict[str, float]:
    """Figures on the evaluation prompts; empty without any."""
    return _named(
        found.on_prompts, names.METRIC_EVAL_ACCEPTANCE_LENGTH, names.METRIC_EVAL_EVERYWHERE_LENGTH
    )


def empty_gap(plan: TrainPlan) -> Gap:
    """The gap of a training before its first checkpoint."""
    prompts = plan.eval_prompts
    return Gap(
        prompts=plan.config.eval_prompts if prompts else None,
        prompts_digest=digest_prompts(prompts) if prompts else None,
        max_tokens=plan.config.eval_max_tokens if prompts else None,
    )


def gap_entry(model_id: str, saved: Saved, found: "CheckpointReplay") -> CheckpointGap:
    """All that is known of a checkpoint's acceptance length before it is served."""
    domain, prompts = found.in_domain, found.on_prompts
    return CheckpointGap(
        model_id=model_id,
        epoch=saved.epoch,
        k=found.k,
        estimate=estimate_acceptance_length(saved.metrics, found.k),
        domain_all=domain.all_positions if domain else None,
        domain_walk=domain.walk if domain else None,
        prompts_all=prompts.all_positions if prompts else None,
        prompts_walk=prompts.walk if prompts else None,
    )


def log_training_figures(run: Run, store: Store, losses: Sequence[float], first_step: int) -> None:
    """Draws the curves, and the best checkpoint's way from the estimate to what would be served.

    Args:
        run: The open training run.
        store: Its store.
        losses: Of the steps of this attempt.
        first_step: Steps that were done before it.
    """
    gap, checkpoints = read_gap(store, run.run_id), store.checkpoints(run.run_id)
    if not checkpoints:
        return
    figures = {"figures/training_curves": training_curves(losses, first_step, checkpoints)}
    entry = gap.find(best_checkpoint(checkpoints).model_id) if gap else None
    if entry is not None:
        figures[FIGURE_NAME] = draw_gap(entry)
    run.log_figures(figures)
    run.set_description(describe_training(store.get_run(run.run_id), checkpoints))


def _named(lengths: "Lengths | None", walk: str, everywhere: str) -> dict[str, float]:
    found = {walk: lengths.walk, everywhere: lengths.all_positions} if lengths else {}
    return {key: figure.value for key, figure in found.items() if figure is not None}
