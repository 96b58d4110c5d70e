"""The door to the store: what any store can do, and how to open the one of this project.

Importing this module is cheap; MLflow itself (2-5 s) is imported when a store is opened.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from harness.digests import FolderDigest
from harness.errors import ConfigError
from harness.redaction import redacted
from harness.settings import Settings, quiet_libraries
from harness.tracking.records import Checkpoint, ModelVersion, RunStatus, RunSummary
from harness.tracking.run import Run


class ModelRegistry(Protocol):
    """Registered models, their versions and aliases. Version numbers are ints everywhere."""

    def names(self) -> tuple[str, ...]:
        """All registered models, sorted."""

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        """The versions of a model, oldest first; empty when there is no such model."""

    def aliases(self, name: str) -> dict[str, int]:
        """Alias to version; empty when there is no such model."""

    def create_version(
        self, name: str, checkpoint: Checkpoint, tags: Mapping[str, str]
    ) -> ModelVersion:
        """Registers a checkpoint as the next version, creating the model when it is the first."""

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Points an alias at a version, silently moving it. Promote through `registry` instead."""

    def delete_alias(self, name: str, alias: str) -> None:
        """Takes an alias away from whatever version it points at."""

    def set_version_tags(self, name: str, version: int, tags: Mapping[str, str]) -> None:
        """Sets tags of a version, overwriting."""

    def describe_version(self, name: str, version: int, markdown: str) -> None:
        """Sets the text on a version's page, overwriting."""

    def delete_version(self, name: str, version: int) -> None:
        """Forgets a version, its aliases with it, silently. Delete through `audit` instead."""


class Store(Protocol):
    """Everything that the harness asks of an experiment store."""

    @property
    def registry(self) -> ModelRegistry:
        """The registered models of this store."""

    @property
    def address(self) -> str:
        """The tracking URI, as a person may type it."""

    def start_run(
        self,
        kind: str,
        name: str,
        *,
        experiment: str,
        tags: Mapping[str, object] | None = None,
        parent_run_id: str | None = None,
    ) -> Run:
        """Starts a run named `<name> #<n>`, n counting runs of that name in the experiment."""

    def attach_run(self, run_id: str) -> Run:
        """A handle on a run of another process or an earlier one; changes nothing by itself."""

    def resume_run(self, run_id: str) -> Run:
        """Makes a run RUNNING again, with this process as its owner."""

    def get_run(self, run_id: str) -> RunSummary:
        """One run; an unknown id is a ConfigError."""

    def find_runs(
        self,
        *,
        kind: str | None = None,
        tags: Mapping[str, str] | None = None,
        status: RunStatus | None = None,
        id_prefix: str | None = None,
        limit: int = 1000,
    ) -> tuple[RunSummary, ...]:
        """Runs that have all these tags, newest first; `id_prefix` is how their ids begin."""

    def checkpoints(self, run_id: str) -> tuple[Checkpoint, ...]:
        """The checkpoints a run put out, in order of step."""

    def get_checkpoint(self, model_id: str) -> Checkpoint:
        """One checkpoint; an unknown id is a ConfigError."""

    def log_model_metrics(
        self,
        model_id: str,
        run_id: str,
        metrics: Mapping[str, float],
        dataset_name: str | None = None,
        dataset_digest: str | None = None,
    ) -> None:
        """Links finite measurements of a checkpoint, made by a run on a data set, to it.

        MLflow puts them on the run as well, so they are dated to the start of the run: what the
        run logs for itself under the same key stands.
        """

    def set_model_tags(self, model_id: str, tags: Mapping[str, object]) -> None:
        """Sets tags of a checkpoint, overwriting."""

    def read_text(self, run_id: str, name: str) -> str | None:
        """A text artifact of a run; None when the run has none of that name."""

    def checkpoint_manifest(self, model_id: str) -> FolderDigest:
        """Names, sizes and digests of a checkpoint's files as they were recorded."""

    def checkpoint_files(self, model_id: str) -> Path | None:
        """A folder with the uploaded files of a checkpoint; None when they were not uploaded."""


_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https")


def require_address(uri: str) -> None:
    """Raises ConfigError unless a store can be at this tracking URI."""
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    is_server = scheme in _SERVERS and parts.hostname
    is_database = scheme in _DATABASES and (parts.netloc or parts.path.strip("/"))
    if not uri.startswith("databricks") and not is_server and not is_database:
        raise ConfigError(
            f"expected the address of an MLflow server or database, found {redacted(uri)!r}",
            "unset MLFLOW_TRACKING_URI to use the embedded store, or give http://<host>:<port> or "
            "sqlite:///<path>",
        )


def open_store(settings: Settings) -> Store:
    """Opens the project's store; the embedded one is created and migrated when it is missing.

    Raises:
        ConfigError: Its address is none.
        TrackingError: The store was moved, has an old schema, or does not answer.
    """
    require_address(settings.tracking_uri)
    quiet_libraries()
    from harness.tracking.backend.store import MlflowStore  # noqa: PLC0415 - MLflow costs seconds

    return MlflowStore.open(settings)


def store_of(reference: str, settings: Settings) -> Store | None:
    """The store that a reference points into; None for a folder or a hub, where none is opened."""
    return open_store(settings) if reference.startswith(("run:", "models:")) else None
