"""MLflow's entities as documents of ours."""

import json
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import LoggedModel
from mlflow.entities import Run as MlflowRun
from mlflow.entities.dataset_input import DatasetInput

from harness.tracking import names
from harness.tracking.records import (
    Checkpoint,
    Dataset,
    Metric,
    RunStatus,
    RunSummary,
    latest_values,
)


def run_summary(run: MlflowRun, experiments: Mapping[str, str]) -> RunSummary:
    """A run; statuses of MLflow that we never set (SCHEDULED) count as RUNNING."""
    status = run.info.status
    inputs = run.inputs
    return RunSummary(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        kind=run.data.tags.get(names.TAG_KIND, ""),
        experiment=experiments.get(run.info.experiment_id, run.info.experiment_id),
        status=RunStatus(status) if status in set(RunStatus) else RunStatus.RUNNING,
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        datasets=tuple(_dataset(item) for item in inputs.dataset_inputs) if inputs else (),
        model_inputs=names.model_inputs(run.data.tags),
        start_ms=run.info.start_time,
        end_ms=run.info.end_time,
    )


def checkpoint(model: LoggedModel, root_dir: Path) -> Checkpoint:
    """A LoggedModel that `Run.log_checkpoint` wrote."""
    params = dict(model.params)
    points = [Metric(m.key, m.value, m.step, m.timestamp) for m in model.metrics or ()]
    epoch = params.get(names.MODEL_PARAM_EPOCH, "none")
    return Checkpoint(
        model_id=model.model_id,
        run_id=model.source_run_id or "",
        name=model.name or "",
        path=root_dir / params[names.MODEL_PARAM_PATH],
        step=int(params[names.MODEL_PARAM_STEP]),
        epoch=None if epoch == "none" else int(epoch),
        digest=params[names.MODEL_PARAM_DIGEST],
        num_bytes=int(params[names.MODEL_PARAM_NUM_BYTES]),
        is_uploaded=model.tags.get(names.MODEL_TAG_UPLOADED) == "true",
        params=params,
        tags=dict(model.tags),
        metrics=latest_values(points),
    )


def _dataset(item: DatasetInput) -> Dataset:
    tags = {tag.key: tag.value for tag in item.tags}
    source = json.loads(item.dataset.source) if item.dataset.source.startswith("{") else {}
    return Dataset(
        name=item.dataset.name,
        source=str(source.get("uri", item.dataset.source)),
        digest=tags.get(names.TAG_DATASET_SHA256, item.dataset.digest),
        context=tags.get("mlflow.data.context", ""),
    )
