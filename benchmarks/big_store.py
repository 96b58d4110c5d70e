"""A store of 5,000 runs with 50 metrics each: how long it takes to fill, and to ask.

First the questions in one process, the store open. Then whole commands as a user types them: what
they take beyond `start`, a process that imports MLflow, opens the store and ends, is their own.

    python benchmarks/big_store.py [--runs 5000] [--metrics 50]
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import MetaData, create_engine, insert, select

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from fakes.bench_results import prompt_samples
from fakes.command_line import environment_of
from fakes.trained import bench, train

from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.embedded import DATABASE
from harness.tracking.records import RunStatus
from harness.tracking.resolve import complete_run_id
from harness.tracking.store import Store, open_store

T = TypeVar("T")
_BATCH = 250
"""Runs a transaction."""
_NUM_PROMPTS, _REPEATS = 96, 3
_START = (
    "from harness.settings import load_settings; from harness.tracking.store import open_store; "
    "open_store(load_settings())"
)
_POLICY = "model: tiny\nmin_acceptance_length: 1.3\nmin_acceptance_gain: 0\n"


def main() -> None:
    """Fills a store in a temporary folder, asks what compare and registry ask, prints seconds."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=5000)
    arguments.add_argument("--metrics", type=int, default=50)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        uri = f"sqlite:///{root / 'mlruns' / DATABASE}"
        settings = load_settings(root).model_copy(update={"tracking_uri": uri})
        store = open_store(settings)
        with store.start_run(names.KIND_BENCH, "bench", experiment=names.EXPERIMENT_BENCH) as first:
            first.set_tags({"input.m-x": "1"})
        ids, took_s = _timed(lambda: _fill(uri, first.run_id, asked.runs, asked.metrics))
        print(f"filled: {asked.runs} runs x {asked.metrics} metrics in {took_s:.1f} s")
        _ask(settings, ids)
        _run_commands(root, _train_and_measure(store, settings))


def _ask(settings: Settings, ids: list[str]) -> None:
    again, took_s = _timed(lambda: open_store(settings))
    print(f"opened in {took_s:.2f} s (MLflow was imported before)")
    questions: dict[str, Callable[[], object]] = {
        "run by the beginning of its id": lambda: complete_run_id(ids[7][:12], again),
        "newest bench of a checkpoint": lambda: again.find_runs(
            kind=names.KIND_BENCH, tags={"input.m-x": "1"}, status=RunStatus.FINISHED, limit=1
        ),
        "one run with all its figures": lambda: again.get_run(ids[-1]),
        "50 newest benches": lambda: again.find_runs(kind=names.KIND_BENCH, limit=50),
        "registered models": again.registry.names,
    }
    for what, ask in questions.items():
        print(f"{what}: {_timed(ask)[1]:.2f} s")


def _train_and_measure(store: Store, settings: Settings) -> str:
    """A training of two checkpoints and a bench of both that hold figures by prompt."""
    run_id, models = train(store, settings)
    counts = [number % 9 for number in range(_NUM_PROMPTS)]
    samples = (
        *prompt_samples("baseline", counts, 0.06, None),
        *prompt_samples("epoch-0", counts),
        *prompt_samples("epoch-1", [count + number % 3 for number, count in enumerate(counts)]),
    )
    bench(store, models, settings.root_dir / "verifier", result_changes={"samples": samples})
    (settings.root_dir / "policy.yaml").write_text(_POLICY)
    return run_id


def _run_commands(root: Path, run_id: str) -> None:
    """Each command as a process of its own: seconds by the clock, and of the CPU."""
    both = [f"run:{run_id}@{epoch}" for epoch in (0, 1)]
    promote = ("promote", "--policy", "policy.yaml")
    started = _show("start", root, "-c", _START)
    commands: list[tuple[str, ...]] = [("--help",), ("compare", "--help")]
    commands += [(*promote, both[0]), (*promote, both[1])]
    commands += [("compare", *both), ("report", *both)]
    commands += [("registry", *words) for words in (("list",), ("show", "tiny"))]
    commands += [("registry", *words) for words in (("history", "tiny"), ("check",))]
    for words in commands:
        repeats = 1 if words[0] == "promote" else _REPEATS
        name = " ".join(words[:2] if words[0] == "registry" else words[:1]) + (
            " --help" if "--help" in words[1:] else ""
        )
        _show(name, root, "-m", "harness", *words, repeats=repeats, started=started)


def _show(
    name: str, root: Path, *arguments: str, repeats: int = _REPEATS, started: float | None = None
) -> float:
    """Prints the median of some runs; returns its seconds of the CPU."""
    walls, cpus = [], []
    for _ in range(repeats):
        before = _cpu_s()
        process, wall_s = _timed(
            lambda: subprocess.run(
                [sys.executable, *arguments],
                env=environment_of(root),
                cwd=root,
                capture_output=True,
                text=True,
                check=False,
            )
        )
        assert process.returncode == 0, process.stderr
        walls.append(wall_s)
        cpus.append(_cpu_s() - before)
    wall_s, cpu_s = statistics.median(walls), statistics.median(cpus)
    own = "" if started is None else f", beyond start {cpu_s - started:+.2f} s"
    print(f"harness {name}: {wall_s:.2f} s by the clock, {cpu_s:.2f} s of the CPU{own}")
    return cpu_s


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.monotonic()
    return work(), time.monotonic() - started


def _fill(uri: str, like: str, num_runs: int, num_metrics: int) -> list[str]:
    """Copies of one run with other ids, written table by table in batches."""
    engine = create_engine(uri)
    tables = MetaData()
    tables.reflect(engine)
    runs, tags, metrics, latest = (
        tables.tables[name] for name in ("runs", "tags", "metrics", "latest_metrics")
    )
    ids = [uuid4().hex for _ in range(num_runs)]
    with engine.connect() as reading:
        row = dict(reading.execute(select(runs).where(runs.c.run_uuid == like)).mappings().one())
        marks = [
            dict(mark)
            for mark in reading.execute(select(tags).where(tags.c.run_uuid == like)).mappings()
            if not mark["key"].startswith("input.")
        ]
    for start in range(0, num_runs, _BATCH):
        some = ids[start : start + _BATCH]
        points = [
            {
                "key": f"metric_{number}", "value": 1.0 + number, "timestamp": row["start_time"],
                "step": 0, "is_nan": False, "run_uuid": run_id,
            }
            for run_id in some
            for number in range(num_metrics)
        ]  # fmt: skip
        with engine.begin() as writing:
            writing.execute(insert(runs), [
                row | {"run_uuid": i, "name": i[:8], "start_time": row["start_time"] + n}
                for n, i in enumerate(some, start)
            ])  # fmt: skip
            writing.execute(insert(tags), [m | {"run_uuid": i} for i in some for m in marks])
            writing.execute(insert(metrics), points)
            writing.execute(insert(latest), points)
    engine.dispose()
    return ids


if __name__ == "__main__":
    main()
