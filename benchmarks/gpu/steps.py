"""What run.py runs: commands of harness, the most wanted first."""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROMPTS = ROOT / "experiments" / "smollm2-135m" / "prompts" / "eval.jsonl"
TRAIN_PROMPTS = PROMPTS.with_name("train.jsonl")
"""For times at 128 requests at once; of acceptance they say nothing."""
DEPTHS = (60, 120, 30)
"""Layers added to the verifier, the most wanted first."""
VARIANTS = {"weaker": ("layers.0.self_attn.o_proj.weight", 0.5),
            "weakest": ("layers.0.mlp.down_proj.weight", 0.25)}  # fmt: skip
"""Drafters of one architecture and another acceptance: a tensor of the given one, scaled."""
GROUPS = '["--gpu-memory-utilization","0.4"]'
"""vLLM as it is, with its cache groups."""
_EIGHTY = ("--set", "num_prompts=80", "--set", "max_tokens=128", "--set", "block_size=80")


class Step(NamedTuple):
    """One command, and the seconds it is known to need at least."""

    name: str
    argv: tuple[str, ...]
    """After the interpreter."""
    least_s: float = 60.0


def plan(flags: argparse.Namespace) -> list[Step]:
    """All steps that can be named yet: those on trained checkpoints need the training."""
    plain, one = flags.verifier, ("--drafter", str(flags.drafter))
    variants = tuple(x for v in VARIANTS for x in ("--drafter", str(flags.work / v)))
    curve = ("--k", "3", "--concurrency", "1,8")
    steps = [
        _harness("verifier", 10, "verifier", "show", plain),
        _bench("main", plain, *one, *variants, *curve, "--parity"),
        *_depths(flags, *one, *curve),
        _bench("swap", plain, *one, *variants, "--k", "3", "--swap-check", "2"),
        _bench("k", plain, *one, "--k", "1,2,5", "--concurrency", "1,8"),
        _bench("load", plain, *one, "--k", "3", "--concurrency", "1,8,32,128",
               "--set", "num_prompts=128", "--set", "block_size=128",
               "--set", "server.max_num_seqs=128", "--profile", prompts=TRAIN_PROMPTS),
        _bench("ceiling", plain, "--ceiling", "--k", "3"),
        *_lossless(plain, *one),
    ]  # fmt: skip
    if flags.conversations:
        steps += _training(flags)
    return steps


def _depths(flags: argparse.Namespace, *argv: str) -> list[Step]:
    steps = []
    for depth in DEPTHS:
        folder = str(flags.work / f"padded-{depth}")
        pad = ("verifier", "pad", flags.verifier, "--layers", str(depth), "--out", folder)
        steps.append(_harness(f"pad-{depth}", 10, *pad))
        steps.append(_bench(f"depth-{depth}", folder, *argv, "--profile"))
    deepest_wanted = str(flags.work / f"padded-{DEPTHS[0]}")
    steps.append(_bench("tune", deepest_wanted, *argv, "--tune"))
    groups = ("--set", f"server.extra_args={GROUPS}")
    steps.append(_bench("depth-60-groups", deepest_wanted, *argv, *groups, "--profile"))
    return steps


def _lossless(plain: str, *argv: str) -> list[Step]:
    """Equal answers by dtype and requests at once; vLLM's batch-invariant mode last."""
    curve = (*argv, "--k", "3", "--concurrency", "1,8,32", "--set", "num_prompts=64",
             "--set", "block_size=64")  # fmt: skip
    return [
        *(
            _bench(f"lossless-{dtype}", plain, *curve, "--set", f"server.dtype={dtype}")
            for dtype in ("bfloat16", "float16", "float32")
        ),
        _bench("lossless-invariant", plain, *curve,
               "--set", 'server.env={"VLLM_BATCH_INVARIANT":"1"}'),
    ]  # fmt: skip


def _training(flags: argparse.Namespace) -> list[Step]:
    tokens, states, plain = str(flags.work / "tokens"), str(flags.work / "states"), flags.verifier
    read = ("--conversations", str(flags.conversations), "--limit", str(flags.num_conversations))
    train = ("train", str(HERE / "train.yaml"), "--set", f"corpus={states}",
             "--set", f"epochs={flags.epochs}")  # fmt: skip
    steps = [
        _harness("tokens", 10, "data", "prepare", *read, "--verifier", plain, "--out", tokens),
        _harness("states", 20, "data", "extract", "--tokens", tokens, "--verifier", plain,
                 "--out", states, "--yes"),
        _harness("train", 60, *train, "--reuse"),
    ]  # fmt: skip
    trained = flags.work / "train.json"
    if not trained.exists():
        return steps
    run_id = json.loads(trained.read_text())["run_id"]
    ten = tuple(
        x for n in range(flags.epochs) for x in ("--drafter", f"run:{run_id}@{n}")
    )  # fmt: skip
    replay = ("replay", "--prompts", str(PROMPTS), "--verifier", plain, *ten, "--k", "3")
    served = ("--k", "3", "--concurrency", "8", *_EIGHTY)
    return [
        *steps,
        Step("bare", (str(HERE / "bare.py"), str(flags.work / "mlruns/checkpoints" / run_id))),
        _harness("replay-ten", 20, *replay, *_EIGHTY[:4]),
        _bench("ten", plain, *ten, *served),
        _bench("ten-fresh", plain, *ten, *served, "--no-swap"),
    ]


def _bench(name: str, verifier: str, *argv: str, prompts: Path = PROMPTS) -> Step:
    config = str(HERE / "bench.yaml")
    common = ("bench", config, "--verifier", verifier, "--prompts", str(prompts))
    return _harness(name, 60, *common, *argv, "--reuse")


def _harness(name: str, least_s: float, *argv: str) -> Step:
    return Step(name, ("-m", "harness", *argv, "--json"), least_s)
