"""Points and runs a second that three stores take from 1 and from 8 writers.

Each writer is a process with a run of its own, as trainings are. Stores: SQLite (embedded),
PostgreSQL (straight into the database), and the MLflow server with basic auth on PostgreSQL, one
worker, as `deploy/up.sh` starts it; all on this machine, with data on disk.

    python benchmarks/store_throughput.py [--seconds 5] [--writers 1 8] [--out results.json]
"""

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeAlias

from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.records import Metric
from harness.tracking.run import Run
from harness.tracking.store import Store, open_store

Results: TypeAlias = "Queue[dict[str, float]]"
_UP = Path(__file__).parents[1] / "deploy" / "up.sh"
_BATCH = 500
"""Points a call, as a training's recorder sends them after some steps."""
_START_S = 300.0


def main() -> None:
    """Starts the stores one after the other, measures each, prints a table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=5.0)
    arguments.add_argument("--writers", type=int, nargs="+", default=[1, 8])
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    rows = []
    for name, opened in (("SQLite", _sqlite), ("PostgreSQL", _postgresql), ("server", _server)):
        with opened() as settings:
            open_store(settings)  # makes the tables
            for num_writers in asked.writers:
                rows.append({"store": name, "writers": num_writers, "load": os.getloadavg()[0]})
                rows[-1] |= _measure(settings, num_writers, asked.seconds)
                print(" | ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({"cpus": os.cpu_count(), "rows": rows}, indent=2) + "\n")


@contextmanager
def _sqlite() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory() as folder:
        yield _settings(Path(folder), f"sqlite:///{folder}/mlruns/mlflow.db")


@contextmanager
def _postgresql() -> Iterator[Settings]:
    with _up("postgres") as (folder, port, _):
        yield _settings(folder, f"postgresql+psycopg://harness@127.0.0.1:{port}/mlflow")


@contextmanager
def _server() -> Iterator[Settings]:
    with _up("start") as (folder, _, port):
        password = (folder / "admin-password").read_text().strip()
        os.environ |= {
            "MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": password,
        }  # fmt: skip
        yield _settings(folder, f"http://127.0.0.1:{port}")


@contextmanager
def _up(what: str) -> Iterator[tuple[Path, int, int]]:
    """Starts `deploy/up.sh` in a folder of its own: the folder, the ports of both servers."""
    folder = Path(tempfile.mkdtemp(prefix="harness-up-"))
    ports = [_free_port(), _free_port()]
    environment = {
        **os.environ,
        "HARNESS_SERVER_DIR": str(folder),
        "POSTGRES_PORT": str(ports[0]),
        "MLFLOW_PORT": str(ports[1]),
        "MLFLOW_WORKERS": "1",
        "PYTHON": sys.executable,
    }
    subprocess.run([_UP, what], env=environment, check=True, stdout=subprocess.DEVNULL)
    os.environ["PGPASSFILE"] = str(folder / "pgpass")
    try:
        yield folder, ports[0], ports[1]
    finally:
        subprocess.run([_UP, "stop"], env=environment, check=True)
        shutil.rmtree(folder)


def _settings(root: Path, uri: str) -> Settings:
    return load_settings(root).model_copy(update={"tracking_uri": uri})


def _measure(settings: Settings, num_writers: int, seconds: float) -> dict[str, float]:
    """Each kind of work by all writers at once, for as long as asked."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(num_writers), context.Queue()
    writers = [
        context.Process(target=_write, args=(settings, seconds, barrier, results))
        for _ in range(num_writers)
    ]
    for writer in writers:
        writer.start()
    found = [results.get(timeout=_START_S + 10 * seconds) for _ in writers]
    for writer in writers:
        writer.join()
    return {kind: round(sum(counts[kind] for counts in found), 1) for kind in _WORK}


def _write(settings: Settings, seconds: float, barrier: Barrier, results: Results) -> None:
    store = open_store(settings)
    run = store.start_run(names.KIND_TRAIN, f"w{os.getpid()}", experiment=names.EXPERIMENT_TRAIN)
    rates = {}
    for kind, work in _WORK.items():
        barrier.wait(_START_S)
        started, done = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            done += work(store, run, done)
        rates[kind] = done / (time.monotonic() - started)
    run.finish()
    results.put(rates)


def _single(store: Store, run: Run, done: int) -> int:
    del store
    run.log_metrics([Metric("loss", 1.0, done)])
    return 1


def _batch(store: Store, run: Run, done: int) -> int:
    del store
    run.log_metrics([Metric(f"m{n % 10}", 1.0, done + n) for n in range(_BATCH)])
    return _BATCH


def _whole_run(store: Store, run: Run, done: int) -> int:
    del run
    name = f"r{os.getpid()}-{done}"
    with store.start_run(names.KIND_TRAIN, name, experiment=names.EXPERIMENT_TRAIN) as made:
        made.log_params({f"p{n}": n for n in range(20)})
    return 1


_WORK: dict[str, Callable[[Store, Run, int], int]] = {
    "single points/s": _single,
    f"points/s, {_BATCH} a call": _batch,
    "runs/s": _whole_run,
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
