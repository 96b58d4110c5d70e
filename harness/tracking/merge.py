"""Brings the ended runs of another store into this one, beside what is there: ids are kept.

For runs that were made on another machine. `migrate` moves a whole store into an empty one.
"""

from typing import TYPE_CHECKING

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.errors import CheckError, ConfigError
from harness.tracking.migrate import Place
from harness.tracking.store import open_store

if TYPE_CHECKING:
    from harness.tracking.backend.artifacts import ArtifactTree


class Merged(Frozen):
    """What a call brought."""

    run_ids: tuple[str, ...]
    model_ids: tuple[str, ...]
    num_files: int
    """Artifacts of theirs."""


def merge_store(source: Place, target: Place, progress: ProgressFn) -> Merged:
    """Brings runs that have an end and are not there, or went on since; open ones stay away.

    Artifacts come first and the rows of the runs last, so a run that is seen is whole. Registered
    models, their aliases and the decision log are not brought: promotions are made in one place.

    Raises:
        ConfigError: The tables are of different versions of MLflow.
        CheckError: An artifact is not what was sent.
    """
    from harness.tracking.backend.artifacts import ArtifactTree  # noqa: PLC0415 - MLflow costs seconds
    from harness.tracking.backend.merging import find_ended, merge_rows  # noqa: PLC0415
    from harness.tracking.backend.tables import Tables  # noqa: PLC0415

    open_store(target.settings)
    sent, held = (Tables(place.database, place.root) for place in (source, target))
    try:
        if sent.revision() != held.revision():
            raise ConfigError(
                f"expected tables of one version of MLflow, found {sent.revision()} in "
                f"{source.shown} and {held.revision()} in {target.shown}",
                "install the same version of MLflow on both machines",
            )
        ended = find_ended(sent, held)
        trees = [
            ArtifactTree(tables.root, place.settings.tracking_uri)
            for tables, place in ((sent, source), (held, target))
        ]
        owners = ended.run_ids | ended.model_ids
        num_files = _bring_files(trees[0], trees[1], owners, progress) if owners else 0
        merge_rows(sent, held, ended)
        return Merged(
            run_ids=tuple(sorted(ended.run_ids)),
            model_ids=tuple(sorted(ended.model_ids)),
            num_files=num_files,
        )
    finally:
        sent.close()
        held.close()


def _bring_files(
    sent: "ArtifactTree", held: "ArtifactTree", owners: frozenset[str], progress: ProgressFn
) -> int:
    """Copies the artifacts of these runs and models, whose ids are folders on the way to them."""
    paths = sorted(path for path in sent.sizes() if owners & set(path.split("/")))
    for number, path in enumerate(paths, 1):
        with sent.opened(path) as file:
            held.put(path, file)
        if held.digest(path) != sent.digest(path):
            raise CheckError(
                f"the artifact {path} arrived with another content",
                "was it written to meanwhile? call the same command again",
            )
        progress("artifacts", number, len(paths))
    return len(paths)
