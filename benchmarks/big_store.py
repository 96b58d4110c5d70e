"""A store of 5,000 runs with 50 metrics each: how long it takes to fill, and to ask.

Times are of the work after start: MLflow's import and the opening of the store are told apart.

    python benchmarks/big_store.py [--runs 5000] [--metrics 50]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import MetaData, create_engine, insert, select

from harness.settings import load_settings
from harness.tracking import names
from harness.tracking.embedded import DATABASE
from harness.tracking.records import RunStatus
from harness.tracking.resolve import complete_run_id
from harness.tracking.store import open_store

T = TypeVar("T")
_BATCH = 250
"""Runs a transaction."""


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
