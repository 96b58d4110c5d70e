"""The writes of one run over MLflow's client, in batches below MLflow's limits."""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import mlflow.entities as entity
from mlflow import MlflowClient

from harness.tracking import names
from harness.tracking.backend.failures import translated
from harness.tracking.records import Dataset, Metric, NewCheckpoint, RunStatus

T = TypeVar("T")

_METRICS_PER_BATCH = 800
_PAIRS_PER_BATCH = 100
"""MLflow takes 1,000 entities, 100 params, 100 tags and 1 MB a request.
Source: mlflow/utils/validation.py, 3.17."""
_PAIR_BYTES_PER_BATCH = 500_000


class MlflowWriter:
    """The RunWriter of `harness.tracking.run`; every write may be repeated without harm."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    @translated
    def write_batch(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """See `RunWriter.write_batch`."""
        now = int(time.time() * 1000)
        points = [entity.Metric(m.key, m.value, m.timestamp_ms or now, m.step) for m in metrics]
        texts = [entity.Param(key, value) for key, value in (params or {}).items()]
        marks = [entity.RunTag(key, value) for key, value in (tags or {}).items()]
        for some_params in pair_batches(texts):
            self._client.log_batch(run_id, params=some_params)
        for some_tags in pair_batches(marks):
            self._client.log_batch(run_id, tags=some_tags)
        for some_points in batches(points):
            self._client.log_batch(run_id, metrics=some_points)

    @translated
    def write_text(self, run_id: str, name: str, text: str) -> None:
        """See `RunWriter.write_text`."""
        self._client.log_text(run_id, text, name)

    @translated
    def write_file(self, run_id: str, path: Path, folder: str) -> None:
        """See `RunWriter.write_file`."""
        self._client.log_artifact(run_id, str(path), folder or None)

    @translated
    def write_dataset(self, run_id: str, dataset: Dataset, profile: str) -> None:
        """See `RunWriter.write_dataset`."""
        record = entity.Dataset(
            name=dataset.name,
            digest=names.short_digest(dataset.digest),
            source_type="local",
            source=json.dumps({"uri": dataset.source}),
            profile=profile,
        )
        tags = [
            entity.InputTag("mlflow.data.context", dataset.context),
            entity.InputTag(names.TAG_DATASET_SHA256, dataset.digest),
        ]
        self._client.log_inputs(run_id, datasets=[entity.DatasetInput(record, tags)])

    @translated
    def write_model_inputs(self, run_id: str, model_ids: Sequence[str]) -> None:
        """See `RunWriter.write_model_inputs`."""
        inputs = [entity.LoggedModelInput(model_id) for model_id in model_ids]
        self._client.log_inputs(run_id, models=inputs)
        self.write_batch(run_id, tags=names.input_tags(model_ids))

    @translated
    def write_checkpoint(self, run_id: str, checkpoint: NewCheckpoint, files: Path | None) -> str:
        """See `RunWriter.write_checkpoint`. The model is READY only when all of it is there."""
        model = self._client.create_logged_model(
            self._client.get_run(run_id).info.experiment_id,
            name=checkpoint.name,
            source_run_id=run_id,
            tags={**checkpoint.tags, "mlflow.model.isExternal": "true"},
            params=checkpoint.params,
            model_type=names.MODEL_TYPE,
        )
        model_id = str(model.model_id)
        with tempfile.TemporaryDirectory() as scratch:
            manifest = Path(scratch) / names.ARTIFACT_MANIFEST
            manifest.write_text(checkpoint.digest.model_dump_json(indent=2), encoding="utf-8")
            self._client.log_model_artifact(model_id, str(manifest))
        if files:
            self._upload(model_id, checkpoint, files)
        self._client.finalize_logged_model(model_id, entity.LoggedModelStatus.READY)
        output = entity.LoggedModelOutput(model_id, checkpoint.step)
        self._client.log_outputs(run_id, [output])
        return model_id

    def _upload(self, model_id: str, checkpoint: NewCheckpoint, folder: Path) -> None:
        for file in checkpoint.digest.files:
            place = (Path(names.ARTIFACT_FILES) / file.name).parent
            self._client.log_model_artifact(model_id, str(folder / file.name), str(place))

    @translated
    def write_status(self, run_id: str, status: RunStatus) -> None:
        """See `RunWriter.write_status`."""
        self._client.set_terminated(run_id, status=str(status))


def batches(items: Sequence[T], size: int = _METRICS_PER_BATCH) -> Iterator[list[T]]:
    """Consecutive parts of a sequence, none longer than `size`."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def pair_batches(pairs: Sequence[T]) -> Iterator[list[T]]:
    """Params or tags in parts that keep MLflow's limits on number and on bytes together."""
    longest = max((len(str(pair)) for pair in pairs), default=1)
    size = max(1, min(_PAIRS_PER_BATCH, _PAIR_BYTES_PER_BATCH // longest))
    yield from batches(pairs, size)
