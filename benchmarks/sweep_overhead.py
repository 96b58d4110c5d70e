"""What the coordinator of a sweep costs beside its trials, once many are recorded.

    python benchmarks/sweep_overhead.py [--recorded 1000] [--measured 30] [--sampler tpe]

Trials are recorded in a journal on this disk; no training runs. Aims: ask and tell together at most
100 ms; everything the coordinator does for a trial at most 1 % of one of ten minutes.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from harness.config.sweep import SweepConfig
from harness.config.train import TrainConfig
from harness.sweep.endings import Endings
from harness.sweep.journal import open_storage
from harness.sweep.records import Epoch
from harness.sweep.space import Space
from harness.sweep.study import SweepStudy
from harness.sweep.view import overview

_TRIAL_S = 600.0
_NUM_EPOCHS = 5
_SPACE = {
    "lr": {"type": "float", "low": 1e-4, "high": 3e-3, "log": True},
    "weight_decay": {"type": "float", "low": 0.0, "high": 0.1},
    "warmup_ratio": {"type": "float", "low": 0.0, "high": 0.3},
    "ttt_steps": {"type": "int", "low": 1, "high": 7},
    "draft_vocab_size": {"type": "categorical", "choices": [2048, 4096, 8192]},
    "loss": {"type": "categorical", "choices": ["kl_div", "ce", "lk_hybrid"]},
}


def main() -> None:
    """Records trials, then times further ones step by step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recorded", type=int, default=1000)
    parser.add_argument("--measured", type=int, default=30)
    parser.add_argument("--sampler", default="tpe", choices=["tpe", "random", "qmc"])
    flags = parser.parse_args()
    config = SweepConfig.model_validate(
        {
            "name": "overhead",
            "train": "train.yaml",
            "objectives": [{"metric": "acceptance_length"}],
            "space": _SPACE,
            "n_trials": 10**6,
            "sampler": {"type": flags.sampler, "seed": 0},
            "pruner": {"type": "successive_halving", "min_resource": 1, "reduction_factor": 2},
        }
    )
    base = TrainConfig(verifier="v", corpus="c", head_dim=64, draft_vocab_size=4096)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        study = SweepStudy(config, Space(config, base), open_storage(None, Path(folder)))
        for _ in range(flags.recorded):
            record(study)
        times = [record(study) for _ in range(flags.measured)]
        began = time.perf_counter()
        overview(study, study.trials())
        look_ms = 1e3 * (time.perf_counter() - began)
    for name in ("ask", "reports", "tell"):
        own = sorted(1e3 * found[name] for found in times)
        print(f"{name:8} median {statistics.median(own):6.1f} ms, highest {own[-1]:6.1f} ms")
    both = statistics.median(1e3 * (found["ask"] + found["tell"]) for found in times)
    whole = statistics.median(1e3 * sum(found.values()) for found in times)
    print(f"one look at all trials: {look_ms:.1f} ms")
    print(f"{flags.sampler}, {flags.recorded} recorded: ask + tell {both:.1f} ms (aim 100 ms)")
    share = whole / 1e3 / _TRIAL_S
    print(f"all of a trial of {_NUM_EPOCHS} epochs: {whole:.0f} ms = {share:.3%} of ten minutes")


def record(study: SweepStudy) -> dict[str, float]:
    """One trial through every call that the coordinator makes; seconds by step."""
    endings = Endings(study)
    began = time.perf_counter()
    trial = study.ask()
    asked = time.perf_counter()
    study.note(trial.number, stage="training", attempts=1, lease={"pid": 1})
    quality = 1.0 + trial.params["lr"] * 100 + trial.number % 17 / 100
    is_pruned = False
    for index in range(_NUM_EPOCHS):
        epoch = Epoch(
            epoch=index, step=index, model_id="m", architecture="a", val_loss=1.0,
            acceptance_length=quality * (index + 1) / _NUM_EPOCHS,
        )  # fmt: skip
        is_pruned = endings.take_epoch(trial.number, epoch)
        if is_pruned:
            break
    reported = time.perf_counter()
    if is_pruned:
        endings.prune(trial.number)
    else:
        endings.settle(study.trial(trial.number))
    told = time.perf_counter()
    return {"ask": asked - began, "reports": reported - asked, "tell": told - reported}


if __name__ == "__main__":
    main()
