"""The training of a run once more by speculators alone; prints seconds an epoch of both.

    python benchmarks/gpu/bare.py RUN_FOLDER [FLAGS]    the folder is of a `harness train`

Same data, same drafter, same settings, six epochs at most, nothing of harness in the process. An
epoch's time is from one checkpoint to the next; the first still compiles, so medians are compared.
"""

import json
import shutil
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

_NUM_EPOCHS = 6


def flags_of(job: dict[str, Any], draft: dict[str, Any], verifier: str, out: Path) -> list[str]:
    """The job in the words of `python -m speculators.train`."""
    config = job["config"]
    layer = out / "layer"
    layer.mkdir(parents=True)
    (layer / "config.json").write_text(json.dumps(draft["transformer_layer_config"]))
    flags = {
        "verifier-name-or-path": verifier,
        "draft-config": layer,
        "draft-vocab-size": job["draft_vocab_size"],
        "token-freq-path": job["token_freq_path"],
        "data-path": job["tokens_dir"],
        "hidden-states-path": job["hidden_states_dir"],
        "train-data-ratio": 1 - config["val_ratio"],
        "on-missing": "raise",
        "num-workers": 4,
        "loss-fn": config["loss"],
        "scheduler-type": config["scheduler"],
        "scheduler-warmup-ratio": config["warmup_ratio"],
        "log-freq": config["log_every_steps"],
        "save-path": out / "epochs",
    }
    same = ("seed", "total_seq_len", "ttt_steps", "ttt_step_loss_decay", "optimizer", "lr",
            "weight_decay", "epochs", "checkpoint_freq", "loss_implementation")  # fmt: skip
    flags |= {name.replace("_", "-"): config[name] for name in same}
    flags["epochs"] = min(config["epochs"], _NUM_EPOCHS)
    named = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    switches = ("norm_before_residual", "norm_before_fc", "norm_output")
    named += [f"--{'' if draft[name] else 'no-'}{name.replace('_', '-')}" for name in switches]
    layers = [str(layer) for layer in job["aux_layer_ids"]]
    return ["--speculator-type", "eagle3", "--target-layer-ids", *layers, *named]


def epoch_seconds(folder: Path) -> list[float]:
    """From each checkpoint's weights to the next one's."""
    weights = folder.glob("*/model.safetensors")
    epochs = {int(path.parent.name): path for path in weights if path.parent.name.isdecimal()}
    ends = [epochs[number].stat().st_mtime for number in sorted(epochs)]
    return [after - before for before, after in pairwise(ends)]


def main() -> None:
    """Trains and compares."""
    run = Path(sys.argv[1])
    out = run.parent / f"bare-{run.name}"
    shutil.rmtree(out, ignore_errors=True)
    job = json.loads((run / "job.json").read_text())
    draft = json.loads(Path(job["draft_config_dir"], "config.json").read_text())
    show = [
        sys.executable,
        "-m",
        "harness",
        "verifier",
        "show",
        job["config"]["verifier"],
        "--json",
    ]
    verifier = json.loads(subprocess.run(show, check=True, stdout=subprocess.PIPE).stdout)["path"]
    flags = flags_of(job, draft, verifier, out)
    command = [sys.executable, "-m", "speculators.train", *flags, *sys.argv[2:]]
    subprocess.run(command, check=True, stdout=sys.stderr)
    ours, bare = epoch_seconds(run / "epochs"), epoch_seconds(out / "epochs")
    rate = statistics.median(bare) / statistics.median(ours)
    print(json.dumps({"harness_epoch_s": ours, "bare_epoch_s": bare, "rate": rate}))


if __name__ == "__main__":
    main()
