"""`harness bench --profile`: where the time of a step goes in the engines of a measurement."""

from eval.profiling import PROFILE_NAME, Profile, StepProfile, profile_steps
from eval.progress import ProgressFn
from harness.commands.benching import BenchRun
from harness.render import show_table, show_text
from harness.tracking import names
from harness.tracking.store import Store

_PARTS = ("verify, one graph", "verify", "sample", "draft")


def add_profile(measured: BenchRun, store: Store, progress: ProgressFn) -> Profile:
    """Profiles the engines of a finished measurement and puts the document on its run.

    Raises:
        EvalError: An engine failed.
    """
    path = measured.out_dir / PROFILE_NAME
    if path.exists():
        return Profile.model_validate_json(path.read_bytes())
    found = profile_steps(measured.result.spec, measured.out_dir, progress)
    store.attach_run(measured.run_id).log_file(path, names.KIND_BENCH)
    return found


def show_profile(found: Profile) -> None:
    """A line a kind of step, milliseconds of the worker's process and, on a GPU, of the GPU."""
    is_gpu = any(step.gpu_ms for step in found.steps)
    parts = [part for part in _PARTS if any(part in step.cpu_ms for step in found.steps)]
    named = names.short_references(list({step.arm: None for step in found.steps}))
    show_table(
        "a decoding step, ms" + (", on the CPU / on the GPU" if is_gpu else ""),
        ("what", "K", "asked", "tokens", "whole", *parts, "outside"),
        [
            (named[step.arm], step.k, step.num_requests, f"{step.num_tokens:.1f}",
             f"{step.step_ms:.2f}", *(_part(step, part, is_gpu=is_gpu) for part in parts),
             f"{step.between_ms:.2f}")
            for step in found.steps
        ],
    )  # fmt: skip
    show_text(
        "whole: to the start of the next step; outside: scheduling, sending, waiting. The clock "
        "costs time of its own: these figures explain, they are no measurement"
    )


def _part(step: StepProfile, part: str, *, is_gpu: bool) -> str | None:
    if part not in step.cpu_ms:
        return None
    cpu = f"{step.cpu_ms[part]:.2f}"
    return f"{cpu} / {step.gpu_ms[part]:.2f}" if is_gpu else cpu
