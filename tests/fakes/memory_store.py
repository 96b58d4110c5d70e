"""A Store in memory, held to the same contract as the one over MLflow."""

import shutil
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from harness.digests import FolderDigest
from harness.errors import ConfigError, TrackingError
from harness.tracking import names, spelling
from harness.tracking.owner import current_owner
from harness.tracking.records import (
    Checkpoint,
    Dataset,
    Metric,
    ModelVersion,
    NewCheckpoint,
    RunStatus,
    RunSummary,
    latest_values,
)
from harness.tracking.run import Run


class MemoryStore:
    """Runs and checkpoints in dictionaries; uploaded files in a folder below `root_dir`."""

    address = "memory:"

    def __init__(self, root_dir: Path) -> None:
        self.root_dir = root_dir
        self.registry = MemoryRegistry()
        self.runs: dict[str, RunSummary] = {}
        self.points: dict[str, list[Metric]] = {}
        self.artifacts: dict[tuple[str, str], str] = {}
        self.models: dict[str, Checkpoint] = {}
        self.manifests: dict[str, FolderDigest] = {}
        self._clock = count(int(time.time() * 1000))
        self._ids = count(1)

    def start_run(
        self,
        kind: str,
        name: str,
        *,
        experiment: str,
        tags: Mapping[str, object] | None = None,
        parent_run_id: str | None = None,
    ) -> Run:
        taken = [run.name for run in self.runs.values() if run.experiment == experiment]
        marks = names.start_tags(kind, "0", current_owner())
        if parent_run_id:
            marks[names.TAG_PARENT] = parent_run_id
        marks |= {names.clean_key(key): spelling.tag_text(v) for key, v in (tags or {}).items()}
        run = RunSummary(
            run_id=f"{next(self._ids):032x}",
            name=f"{name} #{names.next_number(name, taken)}",
            kind=kind,
            experiment=experiment,
            status=RunStatus.RUNNING,
            params={},
            metrics={},
            tags=marks,
            start_ms=next(self._clock),
            end_ms=None,
        )
        self.runs[run.run_id] = run
        self.points[run.run_id] = []
        return self.attach_run(run.run_id)

    def attach_run(self, run_id: str) -> Run:
        return Run(self, run_id, self.get_run(run_id).name, self.root_dir)

    def resume_run(self, run_id: str) -> Run:
        self._update(run_id, status=RunStatus.RUNNING, end_ms=None)
        self.write_batch(run_id, tags=names.owner_tags(current_owner()))
        return self.attach_run(run_id)

    def get_run(self, run_id: str) -> RunSummary:
        if run_id not in self.runs:
            raise ConfigError(f"expected the id of a run in {self.address}, found none: {run_id!r}")
        run = self.runs[run_id]
        return run.model_copy(
            update={
                "metrics": latest_values(self.points[run_id]),
                "model_inputs": names.model_inputs(run.tags),
            }
        )

    def find_runs(
        self,
        *,
        kind: str | None = None,
        tags: Mapping[str, str] | None = None,
        status: RunStatus | None = None,
        id_prefix: str | None = None,
        limit: int = 1000,
    ) -> tuple[RunSummary, ...]:
        found = [self.get_run(run_id) for run_id in reversed(self.runs)]
        wanted = dict(tags or {})
        found = [
            run
            for run in found
            if kind in {None, run.kind}
            and status in {None, run.status}
            and wanted.items() <= run.tags.items()
            and run.run_id.startswith(id_prefix or "")
        ]
        return tuple(found[:limit])

    def checkpoints(self, run_id: str) -> tuple[Checkpoint, ...]:
        found = [model for model in self.models.values() if model.run_id == run_id]
        return tuple(sorted(found, key=lambda checkpoint: checkpoint.step))

    def get_checkpoint(self, model_id: str) -> Checkpoint:
        if model_id not in self.models:
            raise ConfigError(f"expected a checkpoint with model id {model_id!r}, found none")
        return self.models[model_id]

    def log_model_metrics(
        self,
        model_id: str,
        run_id: str,
        metrics: Mapping[str, float],
        dataset_name: str | None = None,
        dataset_digest: str | None = None,
    ) -> None:
        kept = {
            key: value
            for key, value in metrics.items()
            if spelling.finite_number(value) is not None
        }
        model = self.models[model_id]
        self.models[model_id] = model.model_copy(update={"metrics": {**model.metrics, **kept}})
        self.points[run_id] = [Metric(k, v, 0, 0) for k, v in kept.items()] + self.points[run_id]

    def set_model_tags(self, model_id: str, tags: Mapping[str, object]) -> None:
        model = self.models[model_id]
        texts = {key: spelling.tag_text(value) for key, value in tags.items()}
        self.models[model_id] = model.model_copy(update={"tags": {**model.tags, **texts}})

    def read_text(self, run_id: str, name: str) -> str | None:
        return self.artifacts.get((run_id, name))

    def checkpoint_manifest(self, model_id: str) -> FolderDigest:
        return self.manifests[model_id]

    def checkpoint_files(self, model_id: str) -> Path | None:
        folder = self.root_dir / "uploads" / model_id
        return folder if folder.is_dir() else None

    def write_batch(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        run = self.runs[run_id]
        for key, value in (params or {}).items():
            if run.params.get(key, value) != value:
                raise TrackingError(f"param {key} is {run.params[key]!r} already")
        self._update(
            run_id,
            params={**run.params, **(params or {})},
            tags={**run.tags, **(tags or {})},
        )
        self.points[run_id] += metrics

    def write_text(self, run_id: str, name: str, text: str) -> None:
        self.artifacts[run_id, name] = text

    def write_file(self, run_id: str, path: Path, folder: str) -> None:
        name = f"{folder}/{path.name}" if folder else path.name
        self.artifacts[run_id, name] = path.read_text(errors="replace")

    def write_dataset(self, run_id: str, dataset: Dataset, profile: str) -> None:
        self._update(run_id, datasets=(*self.runs[run_id].datasets, dataset))

    def write_model_inputs(self, run_id: str, model_ids: Sequence[str]) -> None:
        marks = {names.TAG_MODEL_INPUT.format(model_id=model_id): "1" for model_id in model_ids}
        self.write_batch(run_id, tags=marks)

    def write_checkpoint(self, run_id: str, checkpoint: NewCheckpoint, files: Path | None) -> str:
        model_id = f"m-{next(self._ids):032x}"
        epoch = checkpoint.params[names.MODEL_PARAM_EPOCH]
        if files:
            for file in checkpoint.digest.files:
                target = self.root_dir / "uploads" / model_id / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(files / file.name, target)
        self.manifests[model_id] = checkpoint.digest
        self.models[model_id] = Checkpoint(
            model_id=model_id,
            run_id=run_id,
            name=checkpoint.name,
            path=self.root_dir / checkpoint.params[names.MODEL_PARAM_PATH],
            step=checkpoint.step,
            epoch=None if epoch == "none" else int(epoch),
            digest=checkpoint.digest.root,
            num_bytes=checkpoint.digest.num_bytes,
            is_uploaded=files is not None,
            params=checkpoint.params,
            tags=checkpoint.tags,
            metrics={},
        )
        return model_id

    def write_status(self, run_id: str, status: RunStatus) -> None:
        self._update(run_id, status=status, end_ms=next(self._clock))

    def _update(self, run_id: str, **changes: object) -> None:
        self.runs[run_id] = self.runs[run_id].model_copy(update=changes)


class MemoryRegistry:
    """Registered models in dictionaries."""

    def __init__(self) -> None:
        self._versions: dict[str, list[ModelVersion]] = {}
        self._aliases: dict[str, dict[str, int]] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._versions))

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        aliases = self.aliases(name)
        return tuple(
            version.model_copy(
                update={
                    "aliases": tuple(sorted(a for a, v in aliases.items() if v == version.version))
                }
            )
            for version in self._versions.get(name, ())
        )

    def aliases(self, name: str) -> dict[str, int]:
        return dict(self._aliases.get(name, {}))

    def create_version(
        self, name: str, checkpoint: Checkpoint, tags: Mapping[str, str]
    ) -> ModelVersion:
        versions = self._versions.setdefault(name, [])
        version = ModelVersion(
            name=name,
            version=1 + max((held.version for held in versions), default=0),
            model_id=checkpoint.model_id,
            run_id=checkpoint.run_id,
            aliases=(),
            tags=dict(tags),
            created_ms=0,
        )
        versions.append(version)
        return version

    def set_alias(self, name: str, alias: str, version: int) -> None:
        if version not in {item.version for item in self._versions.get(name, ())}:
            raise TrackingError(f"no version {version} of {name}")
        self._aliases.setdefault(name, {})[alias] = version

    def delete_alias(self, name: str, alias: str) -> None:
        del self._aliases[name][alias]

    def set_version_tags(self, name: str, version: int, tags: Mapping[str, str]) -> None:
        versions = self._versions[name]
        (place,) = (i for i, item in enumerate(versions) if item.version == version)
        merged = {**versions[place].tags, **tags}
        versions[place] = versions[place].model_copy(update={"tags": merged})

    def describe_version(self, name: str, version: int, markdown: str) -> None:
        versions = self._versions[name]
        (place,) = (i for i, item in enumerate(versions) if item.version == version)
        versions[place] = versions[place].model_copy(update={"description": markdown})

    def delete_version(self, name: str, version: int) -> None:
        self._versions[name] = [v for v in self._versions[name] if v.version != version]
        self._aliases[name] = {a: v for a, v in self.aliases(name).items() if v != version}
