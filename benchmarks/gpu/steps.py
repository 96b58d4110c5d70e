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
    least_s: float
    needs: tuple[str, ...] = ()
    """Steps that must be finished."""


def plan(flags: argparse.Namespace) -> list[Step]:
    """All steps that can be named yet: those on trained checkpoints need the training."""
    plain, drafter = flags.verifier, ("--drafter", str(flags.drafter))
    variants = tuple(x for v in VARIANTS for x in ("--drafter", str(flags.work / v)))
    curve = ("--k", "3", "--concurrency", "1,8")
    deep = _deep(flags)
    return [
        _harness("verifier", 10, "verifier", "show", plain),
        *(_corpus(flags) if flags.conversations else ()),
        _bench("main", plain, *drafter, *variants, *curve, "--parity"),
        *_pads(flags),
        _bench("depth-60", deep, *drafter, *curve, needs=("pad-60",)),
        _bench("depth-60-groups", deep, *drafter, *curve, "--set",
               f"server.extra_args={GROUPS}", needs=("pad-60",)),
        *(_trained(flags) if flags.conversations else ()),
        *(_bench(f"depth-{n}", _deep(flags, n), *drafter, *curve, needs=(f"pad-{n}",))
          for n in DEPTHS[1:]),
        *_lossless(plain, *drafter),
        _bench("load", plain, *drafter, "--k", "3", "--concurrency", "1,8,32,128",
               "--set", "num_prompts=128", "--set", "block_size=128",
               "--set", "server.max_num_seqs=128", "--profile", prompts=TRAIN_PROMPTS),
        _bench("k-60", deep, *drafter, "--k", "1,2,5", "--concurrency", "1", needs=("pad-60",)),
        _bench("k", plain, *drafter, "--k", "1,2,5", "--concurrency", "1"),
        _bench("tune", deep, *drafter, *curve, "--tune", needs=("pad-60",)),
        _bench("ceiling", plain, "--ceiling", "--k", "3"),
        *(_shapes(flags) if flags.conversations else ()),
    ]  # fmt: skip


def _deep(flags: argparse.Namespace, depth: int = DEPTHS[0]) -> str:
    return str(flags.work / f"padded-{depth}")


def _pads(flags: argparse.Namespace) -> list[Step]:
    return [
        _harness(f"pad-{n}", 10, "verifier", "pad", flags.verifier, "--layers", str(n),
                 "--out", _deep(flags, n))
        for n in DEPTHS
    ]  # fmt: skip


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


def _corpus(flags: argparse.Namespace) -> list[Step]:
    """A training of ten checkpoints, from conversations on."""
    tokens, states, plain = str(flags.work / "tokens"), str(flags.work / "states"), flags.verifier
    read = ("--conversations", str(flags.conversations), "--limit", str(flags.num_conversations))
    return [
        _harness("tokens", 10, "data", "prepare", *read, "--verifier", plain, "--out", tokens),
        _harness("states", 20, "data", "extract", "--tokens", tokens, "--verifier", plain,
                 "--out", states, "--yes", needs=("tokens",)),
        _harness("train", 60, "train", str(HERE / "train.yaml"), "--set", f"corpus={states}",
                 "--set", f"epochs={flags.epochs}", "--reuse", needs=("states",)),
    ]  # fmt: skip


def _trained(flags: argparse.Namespace) -> list[Step]:
    """What is measured on the checkpoints of the training."""
    trained = flags.work / "train.json"
    if not trained.exists():
        return []
    run_id = json.loads(trained.read_text())["run_id"]
    ten = tuple(
        x for n in range(flags.epochs) for x in ("--drafter", f"run:{run_id}@{n}")
    )  # fmt: skip
    replay = ("replay", "--prompts", str(PROMPTS), "--verifier", flags.verifier, *ten, "--k", "3")
    served = ("--k", "3", "--concurrency", "8", *_EIGHTY)
    folder = str(flags.work / "mlruns/checkpoints" / run_id)
    return [
        _bench("ten", flags.verifier, *ten, *served),
        _harness("replay-ten", 20, *replay, *_EIGHTY[:4]),
        Step("bare", (str(HERE / "bare.py"), folder), 60.0),
        _bench("ten-fresh", flags.verifier, *ten, *served, "--no-swap"),
        _bench("trained-60", _deep(flags), "--drafter", f"run:{run_id}", "--k", "1,2,3,5",
               needs=("pad-60",)),
        _bench("trained", flags.verifier, "--drafter", f"run:{run_id}", "--k", "1,2,3,5"),
    ]  # fmt: skip


def _shapes(flags: argparse.Namespace) -> list[Step]:
    fixed = {"corpus": flags.work / "states", "verifier": flags.verifier}
    changes = tuple(x for key, value in fixed.items() for x in ("--set", f"fixed.{key}={value}"))
    prompts = ("--set", f"bench_fixed.prompts={PROMPTS}")
    config = str(HERE / "sweep.yaml")
    return [_harness("shapes", 60, "sweep", config, *changes, *prompts, needs=("states",))]


def _bench(
    name: str, verifier: str, *argv: str, prompts: Path = PROMPTS, needs: tuple[str, ...] = ()
) -> Step:
    config = str(HERE / "bench.yaml")
    common = ("bench", config, "--verifier", verifier, "--prompts", str(prompts))
    return _harness(name, 60, *common, *argv, "--reuse", needs=needs)


def _harness(name: str, least_s: float, *argv: str, needs: tuple[str, ...] = ()) -> Step:
    return Step(name, ("-m", "harness", *argv, "--json"), least_s, needs)
