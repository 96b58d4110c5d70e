"""`harness bench --tune`: vLLM's settings tried for the first drafter, then all is measured."""

import json

from eval.device import detect_device
from eval.progress import ProgressFn
from eval.result import BenchResult
from eval.spec import ServerOptions
from eval.tuning import REPEATED, Trial, Tuning, settings_for, tune
from harness.commands.benching import BenchRun, bench_drafters
from harness.config.bench import BenchConfig
from harness.digests import write_atomic
from harness.errors import ConfigError
from harness.render import interval_text, show_table, show_text, warn
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.store import Store

TUNING_NAME = "tuning.json"
_TAG_TUNING = "bench.tuning"


def bench_tuned(
    config: BenchConfig, settings: Settings, store: Store, progress: ProgressFn
) -> tuple[BenchRun, Tuning]:
    """Tries settings with a few prompts, then measures everything with those that helped.

    Each try is a bench run of its own, so that an interrupted tuning goes on where it was.

    Raises:
        ConfigError: There is no drafter, or a setting of the config makes no sense.
        CheckError: A drafter is not sound.
        EvalError: The drafter cannot be measured as the config says.
    """
    if not config.drafters:
        raise ConfigError("--tune: expected a drafter to tune for, found none", "say --drafter")
    few = config.model_copy(
        update={
            "drafters": config.drafters[:1],
            "k": (max(config.k),),
            "num_prompts": max(config.num_tune_prompts, *config.concurrency),
            **_LEFT_OUT,
        }
    )

    def measure(name: str, options: ServerOptions) -> BenchResult:
        tried = few.model_copy(update={"name": f"tune: {name}", "server": options})
        done = bench_drafters(tried, settings, store, progress, is_reusing=name != REPEATED)
        store.attach_run(done.run_id).set_tags({_TAG_TUNING: name})
        return done.result

    found = tune(
        config.server,
        settings_for(
            config.server.device or detect_device(), max(config.k), max(config.concurrency),
            is_sampling=config.temperature > 0,
        ),
        measure,
        config.max_drift,
    )  # fmt: skip
    done = bench_drafters(
        config.model_copy(update={"server": found.options}), settings, store, progress
    )
    path = done.out_dir / TUNING_NAME
    write_atomic(path, found.model_dump_json(indent=1))
    store.attach_run(done.run_id).log_file(path, names.KIND_BENCH)
    return done, found


def show_tuning(found: Tuning) -> None:
    """What was tried, and how to start vLLM from now on."""
    show_table(
        "settings of vLLM, each on top of those kept before it",
        ("setting", "kept", "TPOT ms", "faster by a factor of"),
        [_row(trial) for trial in found.trials],
    )
    for trial in found.trials:
        if trial.problem:
            warn(f"{trial.name}: {trial.problem}")
    drift = ", ".join(f"{interval_text(r)} at {c} at once" for c, r in found.drift.items())
    show_text(f"the first measurement repeated at the end: {drift} times as fast")
    kept = [trial for trial in found.trials[1:] if trial.is_kept]
    if not kept:
        show_text("nothing was kept: no setting is faster beyond its interval")
        return
    for trial in kept:
        show_text(f"{trial.name}: {trial.why}")
    named = ("extra_args", "speculative_config", "enforce_eager")
    changed = found.options.model_dump(include=set(named), exclude_defaults=True, mode="json")
    show_text(f"for bench.yaml: server: {json.dumps(changed)}")


_LEFT_OUT = {
    "proposers": (), "also": (), "ceiling": (), "acceptance_k": (), "precision": None,
    "num_swap_checks": 0, "is_checking_parity": False,
}  # fmt: skip


def _row(trial: Trial) -> tuple[object, ...]:
    tpot = ", ".join(f"{value:.2f} (c={c})" for c, value in trial.tpot_ms.items())
    faster = ", ".join(f"{interval_text(ratio)} (c={c})" for c, ratio in trial.faster.items())
    return trial.name, trial.is_kept, tpot or None, faster or None
