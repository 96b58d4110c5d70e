"""Registered models over MLflow's client. Who may move an alias is decided elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion as MlflowVersion
from mlflow.environment_variables import MLFLOW_TRACKING_URI
from mlflow.exceptions import MlflowException

from harness.tracking.backend.failures import translated
from harness.tracking.records import Checkpoint, ModelVersion

_ABSENT = "RESOURCE_DOES_NOT_EXIST"
_PRESENT = "RESOURCE_ALREADY_EXISTS"


class MlflowRegistry:
    """The ModelRegistry of `harness.tracking.store`."""

    def __init__(self, client: MlflowClient, address: str) -> None:
        self._client = client
        self._address = address

    @translated
    def names(self) -> tuple[str, ...]:
        """See `ModelRegistry.names`."""
        found, token = [], None
        while True:
            page = self._client.search_registered_models(page_token=token)
            found += [model.name for model in page]
            token = page.token
            if not token:
                return tuple(sorted(found))

    @translated
    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        """See `ModelRegistry.versions`."""
        by_version: dict[int, list[str]] = {}
        for alias, version in self.aliases(name).items():
            by_version.setdefault(version, []).append(alias)
        quote = '"' if "'" in name else "'"  # MLflow's filters have no escape for it
        found = self._client.search_model_versions(f"name = {quote}{name}{quote}")
        read = [_version(item, by_version) for item in found]
        return tuple(sorted(read, key=lambda version: version.version))

    @translated
    def aliases(self, name: str) -> dict[str, int]:
        """See `ModelRegistry.aliases`. MLflow's searches leave aliases out; this does not."""
        try:
            model = self._client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code == _ABSENT:
                return {}
            raise
        return {alias: int(version) for alias, version in model.aliases.items()}

    @translated
    def create_version(
        self, name: str, checkpoint: Checkpoint, tags: Mapping[str, str]
    ) -> ModelVersion:
        """See `ModelRegistry.create_version`."""
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != _PRESENT:
                raise
        with _global_address(self._address):
            made = self._client.create_model_version(
                name,
                source=f"models:/{checkpoint.model_id}",
                run_id=checkpoint.run_id,
                tags=dict(tags),
                model_id=checkpoint.model_id,
            )
        return _version(made, {})

    @translated
    def set_alias(self, name: str, alias: str, version: int) -> None:
        """See `ModelRegistry.set_alias`."""
        self._client.set_registered_model_alias(name, alias, str(version))

    @translated
    def delete_alias(self, name: str, alias: str) -> None:
        """See `ModelRegistry.delete_alias`."""
        self._client.delete_registered_model_alias(name, alias)

    @translated
    def set_version_tags(self, name: str, version: int, tags: Mapping[str, str]) -> None:
        """See `ModelRegistry.set_version_tags`."""
        for key, value in tags.items():
            self._client.set_model_version_tag(name, str(version), key, value)

    @translated
    def describe_version(self, name: str, version: int, markdown: str) -> None:
        """See `ModelRegistry.describe_version`."""
        self._client.update_model_version(name, str(version), description=markdown)

    @translated
    def delete_version(self, name: str, version: int) -> None:
        """See `ModelRegistry.delete_version`."""
        self._client.delete_model_version(name, str(version))


@contextmanager
def _global_address(address: str) -> Iterator[None]:
    """Sets MLflow's global URI for a moment: its SQL registry reads `models:/m-...` through it.

    Without this it would look in, and create, `mlflow.db` in the working directory.
    """
    before = MLFLOW_TRACKING_URI.get()
    mlflow.set_tracking_uri(address)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)


def _version(item: MlflowVersion, aliases: Mapping[int, list[str]]) -> ModelVersion:
    number = int(item.version)
    return ModelVersion(
        name=item.name,
        version=number,
        model_id=item.model_id or str(item.source).removeprefix("models:/"),
        run_id=item.run_id or None,
        aliases=tuple(sorted(aliases.get(number, ()))),
        tags=dict(item.tags),
        description=item.description or "",
        created_ms=item.creation_timestamp,
    )
