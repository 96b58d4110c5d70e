"""The store over MLflow's client: runs, their inputs and outputs, checkpoints as LoggedModels.

Nothing here uses MLflow's global state (active run, tracking URI): two stores can be open at once.
"""

import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import mlflow.entities as entity
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException

from harness import __version__
from harness.digests import FolderDigest
from harness.errors import ConfigError, TrackingError
from harness.redaction import redacted
from harness.settings import Settings
from harness.tracking import names, spelling
from harness.tracking.backend import reading
from harness.tracking.backend.failures import is_absence, translated, translated_at_once
from harness.tracking.backend.registry import MlflowRegistry
from harness.tracking.backend.schema import sole_opener
from harness.tracking.backend.writer import MlflowWriter, batches
from harness.tracking.embedded import prepare_embedded
from harness.tracking.owner import current_owner
from harness.tracking.records import Checkpoint, RunStatus, RunSummary
from harness.tracking.run import Run

_CONNECT_TIMEOUT_S = 10.0
_NUM_NEWEST = 50


class MlflowStore:
    """The Store of `harness.tracking.store` on any MLflow tracking URI."""

    def __init__(self, client: MlflowClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self.address = redacted(settings.tracking_uri)
        self.registry = MlflowRegistry(client, settings.tracking_uri)

    @classmethod
    def open(cls, settings: Settings) -> "MlflowStore":
        """Opens the store; the embedded one is made when it is missing."""
        if settings.is_embedded:
            prepare_embedded(settings)
        _require_answer(settings.tracking_uri)
        return cls(_connect(settings.tracking_uri), settings)

    @translated
    def experiment_names(self) -> dict[str, str]:
        """Experiment id to name."""
        found = self._client.search_experiments(max_results=1000)
        return {experiment.experiment_id: experiment.name for experiment in found}

    @translated
    def start_run(
        self,
        kind: str,
        name: str,
        *,
        experiment: str,
        tags: Mapping[str, object] | None = None,
        parent_run_id: str | None = None,
    ) -> Run:
        """See `Store.start_run`."""
        experiment_id = self._experiment_id(experiment)
        number = names.next_number(name, self._names_in(experiment_id, name))
        marks = names.start_tags(kind, __version__, current_owner())
        if parent_run_id:
            marks[names.TAG_PARENT] = parent_run_id
        marks |= {names.clean_key(k): spelling.tag_text(v) for k, v in (tags or {}).items()}
        full_name = f"{name} #{number}"
        run = self._client.create_run(experiment_id, tags=marks, run_name=full_name)
        return Run(MlflowWriter(self._client), run.info.run_id, full_name, self._settings.root_dir)

    def attach_run(self, run_id: str) -> Run:
        """See `Store.attach_run`."""
        run = self.get_run(run_id)
        return Run(MlflowWriter(self._client), run_id, run.name, self._settings.root_dir)

    @translated
    def resume_run(self, run_id: str) -> Run:
        """See `Store.resume_run`."""
        run = self.attach_run(run_id)
        run.set_tags(names.owner_tags(current_owner()))
        self._client.update_run(run_id, status=str(RunStatus.RUNNING))
        return run

    @translated
    def get_run(self, run_id: str) -> RunSummary:
        """See `Store.get_run`."""
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if not is_absence(error):
                raise
            raise ConfigError(
                f"expected the id of a run in {self.address}, found none with id {run_id!r}",
                "the UI (harness ui) shows the id of each run at the top of its page",
            ) from error
        return reading.run_summary(run, self.experiment_names())

    @translated
    def find_runs(
        self,
        *,
        kind: str | None = None,
        tags: Mapping[str, str] | None = None,
        status: RunStatus | None = None,
        id_prefix: str | None = None,
        limit: int = 1000,
    ) -> tuple[RunSummary, ...]:
        """See `Store.find_runs`."""
        experiments = self.experiment_names()
        wanted = {**({names.TAG_KIND: kind} if kind else {}), **(tags or {})}
        terms = [f"tags.`{key}` = '{_quoted(value)}'" for key, value in wanted.items()]
        terms += [f"attributes.status = '{status}'"] if status else []
        terms += [f"attributes.run_id LIKE '{_quoted(id_prefix)}%'"] if id_prefix else []
        found = self._client.search_runs(
            list(experiments),
            filter_string=" AND ".join(terms),
            max_results=limit,
            order_by=["attributes.start_time DESC"],
        )
        return tuple(reading.run_summary(run, experiments) for run in found)

    @translated
    def checkpoints(self, run_id: str) -> tuple[Checkpoint, ...]:
        """See `Store.checkpoints`."""
        run = self._client.get_run(run_id)
        found: list[entity.LoggedModel] = []
        token: str | None = None
        while not found or token:  # a server gives 50 at once
            page = self._client.search_logged_models(
                [run.info.experiment_id],
                filter_string=f"source_run_id = '{_quoted(run_id)}'",
                page_token=token,
            )
            if not page:
                break
            found, token = [*found, *page], page.token
        ready = [model for model in found if model.status == entity.LoggedModelStatus.READY]
        read = [reading.checkpoint(model, self._settings.root_dir) for model in ready]
        return tuple(sorted(read, key=lambda checkpoint: checkpoint.step))

    @translated
    def get_checkpoint(self, model_id: str) -> Checkpoint:
        """See `Store.get_checkpoint`."""
        try:
            model = self._client.get_logged_model(model_id)
        except MlflowException as error:
            if not is_absence(error):
                raise
            raise ConfigError(
                f"expected a checkpoint with model id {model_id!r} in {self.address}, found none"
            ) from error
        return reading.checkpoint(model, self._settings.root_dir)

    @translated
    def log_model_metrics(
        self,
        model_id: str,
        run_id: str,
        metrics: Mapping[str, float],
        dataset_name: str | None = None,
        dataset_digest: str | None = None,
    ) -> None:
        """See `Store.log_model_metrics`."""
        start_ms = self._client.get_run(run_id).info.start_time
        short = names.short_digest(dataset_digest) if dataset_digest else None
        points = [
            entity.Metric(
                names.clean_key(key),
                value,
                start_ms,
                0,
                model_id=model_id,
                dataset_name=dataset_name if short else None,
                dataset_digest=short if dataset_name else None,
            )
            for key, value in metrics.items()
            if spelling.finite_number(value) is not None
        ]
        for part in batches(points):
            self._client.log_batch(run_id, metrics=part)

    @translated
    def set_model_tags(self, model_id: str, tags: Mapping[str, object]) -> None:
        """See `Store.set_model_tags`."""
        texts = {names.clean_key(key): spelling.tag_text(value) for key, value in tags.items()}
        self._client.set_logged_model_tags(model_id, texts)

    @translated
    def read_text(self, run_id: str, name: str) -> str | None:
        """See `Store.read_text`."""
        folder = str(Path(name).parent)
        listed = self._client.list_artifacts(run_id, None if folder == "." else folder)
        if name not in {item.path for item in listed}:
            return None
        with tempfile.TemporaryDirectory() as scratch:
            return Path(self._client.download_artifacts(run_id, name, scratch)).read_text("utf-8")

    @translated
    def checkpoint_manifest(self, model_id: str) -> FolderDigest:
        """See `Store.checkpoint_manifest`."""
        model = self._client.get_logged_model(model_id)
        with tempfile.TemporaryDirectory() as scratch:
            place = f"{model.artifact_location}/{names.ARTIFACT_MANIFEST}"
            found = download_artifacts(
                artifact_uri=place, dst_path=scratch, tracking_uri=self._settings.tracking_uri
            )
            return FolderDigest.model_validate_json(Path(found).read_bytes())

    @translated
    def checkpoint_files(self, model_id: str) -> Path | None:
        """See `Store.checkpoint_files`."""
        model = self._client.get_logged_model(model_id)
        if model.tags.get(names.MODEL_TAG_UPLOADED) != "true":
            return None
        place = f"{model.artifact_location}/{names.ARTIFACT_FILES}"
        uri = self._settings.tracking_uri
        return Path(download_artifacts(artifact_uri=place, tracking_uri=uri))

    def _experiment_id(self, name: str) -> str:
        """The id of an experiment, made when it is missing; another process may make it first."""
        found = self._client.get_experiment_by_name(name)
        if found:
            return str(found.experiment_id)
        place = _artifact_root(self._settings)
        try:
            return str(self._client.create_experiment(name, artifact_location=place))
        except MlflowException:
            found = self._client.get_experiment_by_name(name)
            if not found:
                raise
            return str(found.experiment_id)

    def _names_in(self, experiment_id: str, base: str) -> list[str]:
        """Names of the newest runs called `<base> #<n>`, deleted ones too: the highest numbers."""
        found = self._client.search_runs(
            [experiment_id],
            filter_string=f"attributes.run_name LIKE '{_quoted(base)} #%'",
            run_view_type=entity.ViewType.ALL,
            max_results=_NUM_NEWEST,
            order_by=["attributes.start_time DESC"],
        )
        return [run.info.run_name or "" for run in found]


@translated_at_once
def _connect(uri: str) -> MlflowClient:
    with sole_opener(uri):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)  # what is wrong shows here, not in mid-work
    return client


def _artifact_root(settings: Settings) -> str | None:
    """Where a new experiment keeps its artifacts; None leaves it to the server.

    MLflow's own choice would be `mlruns/` in the working directory.
    """
    uri = settings.tracking_uri
    if urlsplit(uri).scheme in {"http", "https"}:
        return None
    if uri.startswith("sqlite:///") and not settings.is_embedded:
        database = Path(uri.removeprefix("sqlite:///").partition("?")[0])
        return str(database.absolute().parent / "artifacts")
    return settings.artifact_root or str(settings.artifacts_dir)


def _require_answer(uri: str) -> None:
    """Fails at once where nothing listens; MLflow itself would try for four minutes."""
    address = urlsplit(uri)
    if address.scheme not in {"http", "https"} or not address.hostname:
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise TrackingError(
            f"expected an MLflow server at {redacted(uri)}, but nothing answers there: {error}",
            "start it, or unset MLFLOW_TRACKING_URI to use the embedded store",
        ) from error


def _quoted(text: str) -> str:
    """Text inside a MLflow filter's single quotes; it has no escape for the quote itself."""
    return text.replace("'", "_")
