"""Rows of some runs, brought from one MLflow database into another that has runs of its own.

Runs and models keep their ids, which are random. Experiments are numbered by each database and are
matched by name; data sets, by experiment, name and digest.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from harness.tracking.backend.tables import Row, Tables

_OF_RUNS = ("runs", "tags", "params", "metrics", "latest_metrics")
_OF_MODELS = ("logged_models", "logged_model_params", "logged_model_tags")
_OPEN = "RUNNING"


class Ended(NamedTuple):
    """The runs of a database that have an end, and the checkpoints that they put out."""

    run_ids: frozenset[str]
    model_ids: frozenset[str]


def find_ended(sent: Tables, held: Tables) -> Ended:
    """What one database has that the other lacks, or has as it was before it went on."""
    there = {row["run_uuid"]: _state(row) for row in held.rows("runs")}
    runs = frozenset(
        row["run_uuid"]
        for row in sent.rows("runs")
        if row["status"] != _OPEN and there.get(row["run_uuid"]) != _state(row)
    )
    models = (r["model_id"] for r in sent.rows("logged_models") if r["source_run_id"] in runs)
    return Ended(runs, frozenset(models))


def merge_rows(sent: Tables, held: Tables, ended: Ended) -> None:
    """Writes all that belongs to these runs; can be killed and called again, runs come last.

    Until its row is there, a run is not there, however much of it has arrived; so nobody sees half.
    """
    experiments = _match_experiments(sent, held, ended)
    datasets = _match_datasets(sent, held, experiments)

    def fitted(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            yield {**row, **_numbers(row, experiments, datasets)}

    # Other tables point at runs; the row that makes a run appear as ended is written once more.
    runs = [row for row in sent.rows("runs") if row["run_uuid"] in ended.run_ids]
    held.put("runs", fitted({**row, "status": _OPEN, "end_time": None} for row in runs))
    for name in _OF_RUNS[1:]:
        held.put(name, fitted(r for r in sent.rows(name) if r["run_uuid"] in ended.run_ids))
    for name in _OF_MODELS:
        held.put(name, fitted(r for r in sent.rows(name) if r["model_id"] in ended.model_ids))
    held.put(
        "logged_model_metrics",
        fitted(
            row
            for row in sent.rows("logged_model_metrics")
            if row["run_id"] in ended.run_ids and row["model_id"] in ended.model_ids
        ),
    )
    _merge_inputs(sent, held, ended, datasets)
    held.put("runs", fitted(runs))


def _state(row: Row) -> tuple[object, object]:
    return row["status"], row["end_time"]


def _match_experiments(sent: Tables, held: Tables, ended: Ended) -> dict[int, int]:
    needed = {r["experiment_id"] for r in sent.rows("runs") if r["run_uuid"] in ended.run_ids}
    numbers = {row["name"]: row["experiment_id"] for row in held.rows("experiments")}
    matched = {}
    for row in sent.rows("experiments"):
        name = row["name"]
        if row["experiment_id"] in needed and name not in numbers:
            new = {key: value for key, value in row.items() if key != "experiment_id"}
            numbers[name] = held.insert("experiments", new)
        if name in numbers:
            matched[row["experiment_id"]] = numbers[name]
    return matched


def _match_datasets(sent: Tables, held: Tables, experiments: dict[int, int]) -> dict[str, str]:
    """The id there of each data set here; those that are not there are written."""
    there = {_dataset(row): row["dataset_uuid"] for row in held.rows("datasets")}
    matched = {}
    for row in sent.rows("datasets"):
        if row["experiment_id"] not in experiments:
            continue
        placed = {**row, "experiment_id": experiments[row["experiment_id"]]}
        if _dataset(placed) not in there:
            held.put("datasets", [placed])
            there[_dataset(placed)] = row["dataset_uuid"]
        matched[row["dataset_uuid"]] = there[_dataset(placed)]
    return matched


def _dataset(row: Row) -> tuple[object, object, object]:
    return row["experiment_id"], row["name"], row["digest"]


def _numbers(row: Row, experiments: dict[int, int], datasets: dict[str, str]) -> Row:
    changes: Row = {}
    if row.get("experiment_id") in experiments:
        changes["experiment_id"] = experiments[row["experiment_id"]]
    if row.get("dataset_uuid") in datasets:
        changes["dataset_uuid"] = datasets[row["dataset_uuid"]]
    return changes


def _merge_inputs(sent: Tables, held: Tables, ended: Ended, datasets: dict[str, str]) -> None:
    """Data sets and checkpoints that a run read, checkpoints that it put out."""
    ours = ended.run_ids | ended.model_ids
    kept = [
        {**row, "source_id": datasets.get(row["source_id"], row["source_id"])}
        for row in sent.rows("inputs")
        if row["source_id"] in ours or row["destination_id"] in ours
    ]
    ids = {row["input_uuid"] for row in kept}
    held.put("inputs", kept)
    held.put("input_tags", (r for r in sent.rows("input_tags") if r["input_uuid"] in ids))
