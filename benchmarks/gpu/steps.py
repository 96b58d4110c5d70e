"""What run.py runs: commands of harness, the most wanted first."""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROMPTS = ROOT / "experiments" / "smollm2-135m" / "prompts" / "eval.jsonl"
TRAIN_PROMPTS = PROMPTS.with_name("train.jsonl")
"""For times at 128 requests at once; of acceptance they say nothing."""
DEPTHS = (60, 120, 30)
"""Layers added to the verifier, the most wanted first."""
GROUPS = '["--gpu-memory-utilization","0.2"]'
"""vLLM as it is, with its cache groups."""
_CURVE = ("--k", "3", "--concurrency", "1,8")
_DEPTH = ("--k", "1,3,5", "--concurrency", "1,8")
_WHOLE = ("--set", "num_prompts=96", "--set", "max_tokens=192", "--set", "block_size=16")
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
    """All steps that can be named yet: without a drafter, those that train one come first."""
    trained, shape = _read(flags, "train"), _read(flags, "best-shape")
    run = f"run:{trained['run_id']}" if trained else None
    drafter = str(flags.drafter) if flags.drafter else run
    show = _harness("verifier", 10, "verifier", "show", flags.verifier)
    steps = [show, *_training(flags), *_pads(flags)]
    if drafter is not None:
        steps += _wanted(flags, drafter)
        steps += _checkpoints(flags, run) if run else ()
        steps += _rest(flags, drafter)
    if shape:
        steps += _curves(flags, "best", f"run:{shape[0]['facts']['run_id']}")
    return [_queued(step, flags.work / "queue") for step in steps]


def _read(flags: argparse.Namespace, name: str) -> Any:
    """What a step said, or None before it is finished."""
    path = flags.work / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _queued(step: Step, path: Path) -> Step:
    """Measured while no other step starts an engine; the ten are timed with their starts."""
    keys = {"bench": "queue_path", "sweep": "bench_fixed.queue_path"}
    key = next((keys[word] for word in step.argv[:3] if word in keys), None)
    is_measuring = key is not None and step.argv[3].endswith(".yaml")
    if not is_measuring or step.name.startswith("ten"):
        return step
    return step._replace(argv=(*step.argv, "--set", f"{key}={path}"))


def _wanted(flags: argparse.Namespace, drafter: str) -> list[Step]:
    plain, deep, one = flags.verifier, _deep(flags), ("--drafter", drafter)
    groups = ("--set", f"server.extra_args={GROUPS}")
    return [
        _bench("main", plain, *one, *_CURVE, *_WHOLE, "--parity"),
        _bench("depth-0", plain, *one, *_DEPTH),
        _bench("depth-60", deep, *one, *_DEPTH, needs=("pad-60",)),
        _bench("depth-60-groups", deep, *one, *_CURVE, *groups, needs=("pad-60",)),
    ]


def _rest(flags: argparse.Namespace, drafter: str) -> list[Step]:
    plain, deep, one = flags.verifier, _deep(flags), ("--drafter", drafter)
    load = (plain, *one, "--k", "3", "--concurrency", "1,8,32,128", "--set", "num_prompts=128",
            "--set", "block_size=128", "--set", "server.max_num_seqs=128")  # fmt: skip
    return [
        *(
            _bench(f"depth-{n}", _deep(flags, n), *one, *_DEPTH, needs=(f"pad-{n}",))
            for n in DEPTHS[1:]
        ),
        *_lossless(plain, *one),
        _bench("load", *load, prompts=TRAIN_PROMPTS),
        _bench("load-profile", *load, "--profile", prompts=TRAIN_PROMPTS, needs=("load",)),
        *_shapes(flags),
        _bench("ceiling", plain, "--ceiling", "--k", "3"),
        _bench("tune", deep, *one, *_CURVE, "--tune", needs=("pad-60",)),
    ]


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


def _training(flags: argparse.Namespace) -> list[Step]:
    """A training of ten checkpoints, from prompts or given conversations on."""
    answers, tokens, states = (str(flags.work / name) for name in ("answers", "tokens", "states"))
    steps = []
    conversations, plain = flags.conversations, ("--verifier", flags.verifier)
    if conversations is None:
        ask = ("--prompts", str(TRAIN_PROMPTS), "--exclude", str(PROMPTS), "--max-tokens", "256")
        steps = [_harness("answers", 60, "data", "regenerate", *ask, *plain, "--out", answers)]
    read = ("--conversations", str(conversations or answers), "--limit",
            str(flags.num_conversations))  # fmt: skip
    return [
        *steps,
        _harness("tokens", 10, "data", "prepare", *read, *plain, "--out", tokens,
                 needs=tuple(step.name for step in steps)),
        _harness("states", 20, "data", "extract", "--tokens", tokens, *plain, "--out", states,
                 "--yes", needs=("tokens",)),
        _harness("train", 60, "train", str(HERE / "train.yaml"), "--set", f"corpus={states}",
                 "--set", f"epochs={flags.epochs}", "--reuse", needs=("states",)),
    ]  # fmt: skip


def _checkpoints(flags: argparse.Namespace, run: str) -> list[Step]:
    """What is measured on the checkpoints of the training."""
    ten = tuple(x for n in range(flags.epochs) for x in ("--drafter", f"{run}@{n}"))
    replay = ("replay", "--prompts", str(PROMPTS), "--verifier", flags.verifier, *ten, "--k", "3")
    served = ("--k", "3", "--concurrency", "8", *_EIGHTY)
    folder = str(flags.work / "mlruns/checkpoints" / run.removeprefix("run:"))
    return [
        _bench("ten", flags.verifier, *ten, *served),
        _harness("replay-ten", 20, *replay, *_EIGHTY[:4]),
        Step("bare", (str(HERE / "bare.py"), folder), 60.0),
        _bench("ten-fresh", flags.verifier, *ten, *served, "--no-swap", "--set", "max_engines=2"),
        *_curves(flags, "trained", run),
    ]


def _curves(flags: argparse.Namespace, name: str, run: str) -> list[Step]:
    """A trained drafter by K, on the plain and on the padded verifier."""
    by_k = ("--drafter", run, "--k", "1,2,3,5")
    return [
        _bench(f"{name}-60", _deep(flags), *by_k, needs=("pad-60",)),
        _bench(name, flags.verifier, *by_k),
    ]


def _shapes(flags: argparse.Namespace) -> list[Step]:
    """A sweep over shapes of a drafter, and its best."""
    fixed = {"corpus": flags.work / "states", "verifier": flags.verifier}
    changes = tuple(x for key, value in fixed.items() for x in ("--set", f"fixed.{key}={value}"))
    prompts = ("--set", f"bench_fixed.prompts={PROMPTS}")
    config = HERE / "sweep.yaml"
    name = yaml.safe_load(config.read_text())["name"]
    return [
        _harness("shapes", 60, "sweep", str(config), *changes, *prompts, needs=("states",)),
        _harness("best-shape", 10, "sweep", "best", name, needs=("shapes",)),
    ]


def _bench(
    name: str, verifier: str, *argv: str, prompts: Path = PROMPTS, needs: tuple[str, ...] = ()
) -> Step:
    config = str(HERE / "bench.yaml")
    common = ("bench", config, "--verifier", verifier, "--prompts", str(prompts))
    return _harness(name, 60, *common, *argv, "--reuse", needs=needs)


def _harness(name: str, least_s: float, *argv: str, needs: tuple[str, ...] = ()) -> Step:
    return Step(name, ("-m", "harness", *argv, "--json"), least_s, needs)
