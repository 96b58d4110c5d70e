"""All artifacts of a store as files below one root: a folder, a bucket, or what a server serves."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from harness.digests import sha256_file
from harness.tracking.backend.failures import translated


class ArtifactTree:
    """The files below a root.

    Args:
        root: Folder or address; `mlflow-artifacts:` is what the server at `tracking_uri` serves.
        tracking_uri: Of the store.
    """

    @translated
    def __init__(self, root: str, tracking_uri: str) -> None:
        self._folder = (
            Path(root.removeprefix("file://")) if root.removeprefix("file://")[:1] == "/" else None
        )
        place = f"{root}/" if root == "mlflow-artifacts:" else root
        self._repository = get_artifact_repository(place, tracking_uri=tracking_uri)

    @translated
    def sizes(self) -> dict[str, int]:
        """Bytes of each file by its path below the root."""
        found: dict[str, int] = {}
        waiting: list[str | None] = [None]
        while waiting:
            for item in self._repository.list_artifacts(waiting.pop()):
                if item.is_dir:
                    waiting.append(item.path)
                else:
                    found[item.path] = int(item.file_size or 0)
        return found

    @contextmanager
    def opened(self, path: str) -> Iterator[Path]:
        """A file on this machine, for as long as the block lasts."""
        if self._folder:
            yield self._folder / path
            return
        with tempfile.TemporaryDirectory() as scratch:
            yield self._download(path, scratch)

    @translated
    def put(self, path: str, file: Path) -> None:
        """Stores a file; `file` has the name that it is to have."""
        folder = str(PurePosixPath(path).parent)
        self._repository.log_artifact(str(file), None if folder == "." else folder)

    def digest(self, path: str) -> str:
        """SHA-256 of a file."""
        with self.opened(path) as file:
            return sha256_file(file)

    @translated
    def _download(self, path: str, scratch: str) -> Path:
        return Path(self._repository.download_artifacts(path, scratch))
