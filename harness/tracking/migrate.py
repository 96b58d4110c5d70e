"""Moves a whole store to another database: rows with their ids, artifacts, the decision log.

Can be killed at any moment and called again: a table or file that is there already is not moved
twice. At the end both stores are counted and digested, and anything unequal is an error.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.config.load import Frozen
from harness.digests import sha256_file, write_atomic
from harness.errors import CheckError, ConfigError
from harness.redaction import redacted
from harness.settings import Settings, load_settings
from harness.tracking.decisions import DecisionLog
from harness.tracking.embedded import DATABASE
from harness.tracking.store import open_store, require_address

if TYPE_CHECKING:
    from harness.tracking.backend.artifacts import ArtifactTree
    from harness.tracking.backend.tables import Tables

Progress = Callable[[str, int, int], None]
_SERVED = "mlflow-artifacts:"
_MOVING, _MOVED = "moving", "moved"


class Place(NamedTuple):
    """A store as something to move from or to."""

    settings: Settings
    database: str
    """Address for SQLAlchemy; of a server, the database behind it."""
    root: str | None
    """Of the artifacts; None: as the database says."""

    @property
    def shown(self) -> str:
        """What a person may read."""
        return redacted(self.settings.tracking_uri)


class Migration(Frozen):
    """What was moved, each number counted in both stores."""

    source: str
    target: str
    rows: dict[str, int]
    """Rows by table; empty tables are left out."""
    digests: dict[str, str]
    num_files: int
    num_bytes: int
    num_decisions: int
    num_tables_before: int
    """Tables that an earlier call had moved."""
    num_elsewhere: int
    """Runs and checkpoints whose artifacts lie outside the store and stay where they are."""


def find_place(reference: str, settings: Settings, database: str | None) -> Place:
    """What a person means by a project folder, an `mlruns` folder, or an address.

    Args:
        reference: Folder or tracking URI.
        settings: Of this project: where the decision log of a database or server is.
        database: The one behind a server; only needed where `reference` is a server.

    Raises:
        ConfigError: There can be no store, or it is a server and its database is not named.
    """
    if "://" not in reference:
        folder = Path(reference).expanduser().resolve()
        project = load_settings(folder.parent if folder.name == "mlruns" else folder)
        uri = f"sqlite:///{project.mlruns_dir / DATABASE}"
        return Place(
            project.model_copy(update={"tracking_uri": uri}), uri, str(project.artifacts_dir)
        )
    require_address(reference)
    found = settings.model_copy(update={"tracking_uri": reference})
    if not reference.startswith(("http://", "https://")):
        return Place(found, reference, found.artifact_root or str(found.artifacts_dir))
    if not database:
        raise ConfigError(
            f"expected --database beside the server {redacted(reference)}, found none: "
            "through a server every run gets another id, and decisions name runs by id",
            "give the address of the database behind it, such as "
            "postgresql+psycopg://harness@127.0.0.1:5432/mlflow",
        )
    return Place(found, database, None)


def migrate_store(source: Place, target: Place, progress: Progress) -> Migration:
    """Moves everything of one store into another that is new, or that an earlier call began.

    Raises:
        ConfigError: Runs are open, the target is in use, or its tables are of another version.
        CheckError: What arrived is not what was sent.
    """
    from harness.tracking.backend.artifacts import ArtifactTree  # noqa: PLC0415 - MLflow costs seconds
    from harness.tracking.backend.tables import Tables  # noqa: PLC0415

    for place in (source, target):
        open_store(place.settings)  # makes the tables of a new one, and says what is wrong
    sent, held = (Tables(place.database, place.root) for place in (source, target))
    try:
        _require_movable(source, target, sent, held)
        held.set_mark(_mark(source, _MOVING))
        num_before = _move_tables(sent, held, progress)
        held.set_counters()
        trees = [
            ArtifactTree(tables.root, place.settings.tracking_uri)
            for tables, place in ((sent, source), (held, target))
        ]
        sizes = _move_files(trees[0], trees[1], progress)
        num_decisions = _move_decisions(source.settings.mlruns_dir, target.settings.mlruns_dir)
        contents = _compare(sent, held, progress)
        held.set_mark(_mark(source, _MOVED))
        return Migration(
            source=source.shown,
            target=target.shown,
            rows={name: content[0] for name, content in contents.items() if content[0]},
            digests={name: content[1] for name, content in contents.items() if content[0]},
            num_files=len(sizes),
            num_bytes=sum(sizes.values()),
            num_decisions=num_decisions,
            num_tables_before=num_before,
            num_elsewhere=sent.num_elsewhere(),
        )
    finally:
        sent.close()
        held.close()


def _mark(source: Place, state: str) -> str:
    return json.dumps({"source": source.shown, "state": state})


def _require_movable(source: Place, target: Place, sent: "Tables", held: "Tables") -> None:
    if source.database == target.database:
        raise ConfigError(f"expected two stores, found one: {source.shown}")
    if sent.revision() != held.revision():
        raise ConfigError(
            f"expected tables of one version of MLflow, found {sent.revision()} in {source.shown} "
            f"and {held.revision()} in {target.shown}",
            "copy the older database, then run: mlflow db upgrade <its address>",
        )
    if num_open := sent.num_open_runs():
        raise ConfigError(
            f"expected no open run in {source.shown}, found {num_open}: it would change on the way",
            "let them finish; harness doctor --reap closes those whose process is gone",
        )
    mark = held.mark()
    if mark != _mark(source, _MOVING) and (mark or not held.is_new()):
        was = f"filled from {json.loads(mark)['source']}" if mark else "in use"
        raise ConfigError(
            f"expected a new store at {target.shown}, found one that is {was}",
            "name an empty database or folder: what is there would be mixed with what comes",
        )


def _move_tables(sent: "Tables", held: "Tables", progress: Progress) -> int:
    """Moves what is unequal; returns how many tables with rows were there before."""
    num_before = 0
    for number, name in enumerate(sent.names):
        progress("tables", number, len(sent.names))
        content = sent.content(name)
        if content == held.content(name):
            num_before += bool(content.num_rows)
        else:
            held.copy_table(sent, name)
    progress("tables", len(sent.names), len(sent.names))
    return num_before


def _move_files(sent: "ArtifactTree", held: "ArtifactTree", progress: Progress) -> dict[str, int]:
    """Moves files of another size, then compares all by digest: a wrong one is moved once more."""
    sizes, there = sent.sizes(), held.sizes()
    missing = sorted(path for path in sizes if there.get(path) != sizes[path])
    for number, path in enumerate(missing, 1):
        with sent.opened(path) as file:
            held.put(path, file)
        progress("artifacts", number, len(missing))
    for number, path in enumerate(sorted(sizes), 1):
        with sent.opened(path) as file:
            digest = sha256_file(file)
            is_equal = held.digest(path) == digest
            if not is_equal:
                held.put(path, file)
        if not is_equal and held.digest(path) != digest:
            raise CheckError(
                f"the artifact {path} arrived with another content",
                "was it written to meanwhile? call the same command again",
            )
        progress("artifacts compared", number, len(sizes))
    return sizes


def _move_decisions(source_dir: Path, target_dir: Path) -> int:
    sent, held = DecisionLog(source_dir), DecisionLog(target_dir)
    decisions = sent.read()
    if source_dir == target_dir or not decisions:
        return len(decisions)
    if held.read() != decisions[: len(held.read())]:
        raise ConfigError(
            f"expected no decisions in {held.path}, or the first ones of {sent.path}, found others",
            "a project has one decision log: set one of them aside",
        )
    write_atomic(held.path, sent.path.read_bytes())
    held.path.chmod(0o600)
    if held.read() != decisions:
        raise CheckError(f"{held.path} is not what {sent.path} is", "call the same command again")
    return len(decisions)


def _compare(sent: "Tables", held: "Tables", progress: Progress) -> dict[str, tuple[int, str]]:
    contents = {}
    for number, name in enumerate(sent.names):
        progress("tables compared", number, len(sent.names))
        before, after = sent.content(name), held.content(name)
        if before != after:
            raise CheckError(
                f"the table {name} has {before.num_rows} rows here and {after.num_rows} there, or "
                "not the same",
                "was one of the stores written to meanwhile? call the same command again",
            )
        contents[name] = (before.num_rows, before.digest)
    progress("tables compared", len(sent.names), len(sent.names))
    return contents
