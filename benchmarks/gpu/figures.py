"""The figures of finished steps, small enough to commit."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr
from steps import DEPTHS


def summarise(work: Path) -> dict[str, Any]:
    """The figures of all finished measurements, without their spec and samples."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(work.glob("*.json"))}
    benches = {name: document for name, document in found.items() if "results" in document}
    texts = {name for name in benches if name.startswith("lossless-")}
    summary = {name: _figures(benches[name]) for name in benches.keys() - texts}
    beside = {name: _beside(work, name) for name in ("profile", "tuning")}
    return {
        "machine": _machine(), "wall_s": _wall_seconds(work),
        "measurements": dict(sorted(summary.items())),
        "lossless": {name: _texts(benches[name]) for name in sorted(texts)},
        "shapes": found.get("shapes"),
        "depths": _depths(benches), "checkpoints": _checkpoints(found),
        "training": found.get("bare"), **beside,
    }  # fmt: skip


def _wall_seconds(work: Path) -> dict[str, float]:
    """Of each step's last call."""
    path = work / "times.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: value for line in lines for name, value in json.loads(line).items()}


def _checkpoints(found: dict[str, Any]) -> dict[str, Any] | None:
    """Ten checkpoints of one training: as replayed, as served, and what each way took."""
    if not {"replay-ten", "ten"} <= found.keys():
        return None
    replay = found["replay-ten"]
    replayed = {
        one["drafter"]: row["acceptance_length"]["value"]
        for one in replay["drafters"]
        for row in one["rows"]
        if row["category"] == "all" and row["k"] == replay["k"]
    }
    rows = [row for row in found["ten"]["results"] if row["category"] == "all"]
    served = {row["drafter"]: row["acceptance_length"]["value"] for row in rows}
    both = [(replayed[name], served[name]) for name in served]
    again = [row for row in found.get("ten-fresh", {"results": ()})["results"]
             if row["category"] == "all"]  # fmt: skip
    fresh = {row["drafter"]: row["acceptance"] for row in again}
    return {
        "num_equal_in_fresh_engines": sum(
            fresh.get(row["drafter"]) == row["acceptance"] for row in rows
        )
        if fresh
        else None,
        "replayed_and_served": both,
        "spearman": float(spearmanr(both).statistic),
        "replay_s": [one["replay_s"] for one in replay["drafters"]],
        "states_s": replay["states_s"],
        "load_s": replay["load_s"],
        "generation_s": found["ten"]["generation_s"],
        "bench_s": {name: found[name]["duration_s"] for name in ("ten", "ten-fresh")
                    if name in found},
    }  # fmt: skip


def _texts(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Of measurements that may have shared their GPU: answers, and no times."""
    kept = ("drafter", "k", "concurrency", "num_prompts", "acceptance_length", "lossless")
    rows = [_row(row) for row in document["results"] if row["category"] == "all"]
    return [{key: row[key] for key in kept} for row in rows]


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
    """Speedup by depth at K = 3: measured, and predicted from K = 1 and 5 at that depth.

    A step takes as many plain steps as a straight line in K through those two says, each paired
    with its own blocks of the baseline; the tokens that it brings are what K = 5 had accepted at
    the first three positions.
    """
    curves = []
    for concurrency in (1, 8):
        points = []
        for depth in (0, *sorted(DEPTHS)):
            rows = benches.get(f"depth-{depth}", {}).get("results", ())
            by_k = {row["k"]: row for row in rows if row["category"] == "all"
                    and row["concurrency"] == concurrency}  # fmt: skip
            if {1, 3, 5} <= by_k.keys():
                points.append({"added_layers": depth, **_predicted(by_k)})
        curves.append({"concurrency": concurrency, "points": points})
    return curves


def _predicted(by_k: dict[int, dict[str, Any]]) -> dict[str, Any]:
    plain_steps = {k: row["tokens_per_step"]["value"] / row["decode_speedup"]["value"]
                   for k, row in by_k.items()}  # fmt: skip
    accepted = by_k[5]["acceptance"]
    beyond = sum(accepted["accepted_at"][3:]) / accepted["num_drafts"]
    tokens = by_k[5]["tokens_per_step"]["value"] - beyond
    predicted = tokens / ((plain_steps[1] + plain_steps[5]) / 2)
    measured = by_k[3]["decode_speedup"]
    return {
        "plain_steps": plain_steps, "measured": measured, "predicted": predicted,
        "error": predicted / measured["value"] - 1,
        "plain_step_ms": by_k[3]["baseline_tpot_ms"]["value"],
    }  # fmt: skip


def _machine() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    return {"gpus": "; ".join(filter(None, gpus)), "cpus": str(len(os.sched_getaffinity(0)))}
