"""The tables of an MLflow database, whatever its kind, row by row: read, written, compared.

MLflow's interface gives every run and model a new id, and decisions, checkpoints and benches name
runs by id. So rows are moved as they are. Places of artifacts below a store's own root are read as
`{root}/...` and written below the root of the store that they come into.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import (
    MetaData,
    Table,
    create_engine,
    delete,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from harness.errors import ConfigError
from harness.tracking.backend.failures import translated
from harness.tracking.relocate import PATH_COLUMNS

Row = dict[str, Any]
_CHUNK = 500
"""Rows a statement; SQLite takes 32,766 values at once."""
_ROOT = "{root}"
_MARK_TABLE, _MARK = "experiment_tags", "harness.migrated_from"
_DEFAULT_EXPERIMENT = 0
_OF_EVERY_STORE = frozenset({"experiments", "workspaces"})
"""Tables that have a row in a new store."""


class Content(NamedTuple):
    """What a table holds. `digest` is the sum of the rows' SHA-256: their order does not matter."""

    num_rows: int
    digest: str


class Tables:
    """An MLflow database.

    Args:
        uri: Its address for SQLAlchemy.
        root: Where the artifacts of this store are, without a slash at the end; None: where its
            default experiment says.
    """

    @translated
    def __init__(self, uri: str, root: str | None) -> None:
        self._engine = create_engine(uri)
        self._known = MetaData()
        self._known.reflect(self._engine)
        self.root = root if root is not None else self._root_of_default()

    @property
    def names(self) -> tuple[str, ...]:
        """All tables but the one of the schema's version, those that others point at first."""
        return tuple(t.name for t in self._known.sorted_tables if t.name != "alembic_version")

    @translated
    def revision(self) -> str:
        """The version of the schema."""
        with self._engine.connect() as connection:
            return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())

    @translated
    def content(self, name: str) -> Content:
        """Number and digest of a table's rows."""
        number, total = 0, 0
        for row in self.rows(name):
            number += 1
            line = json.dumps(row, sort_keys=True, default=_text)
            total += int.from_bytes(hashlib.sha256(line.encode()).digest(), "big")
        return Content(number, f"{total % (1 << 256):064x}")

    @translated
    def num_open_runs(self) -> int:
        """Runs that have no end yet."""
        runs = self._known.tables["runs"]
        with self._engine.connect() as connection:
            asked = select(func.count()).select_from(runs).where(runs.c.status == "RUNNING")
            return int(connection.execute(asked).scalar_one())

    @translated
    def is_new(self) -> bool:
        """Whether there is nothing in it but what MLflow puts into every store."""
        return all(
            self.content(n).num_rows <= (1 if n in _OF_EVERY_STORE else 0) for n in self.names
        )

    @translated
    def copy_table(self, source: "Tables", name: str) -> None:
        """Writes all rows of another store's table; rows of the same key are overwritten."""
        self.put(name, source.rows(name))

    @translated
    def put(self, name: str, rows: Iterable[Row]) -> None:
        """Writes rows as `rows` gives them; rows of the same key are overwritten."""
        table = self._known.tables[name]
        dialect: Any = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        key = [column.name for column in table.primary_key.columns]
        others = [column.name for column in table.columns if column.name not in key]
        for some in _chunks(rows):
            placed = [self._placed(table, row) for row in some]
            statement = dialect.insert(table)
            changes = {column: statement.excluded[column] for column in others}
            with self._engine.begin() as connection:
                connection.execute(
                    statement.on_conflict_do_update(index_elements=key, set_=changes)
                    if changes
                    else statement.on_conflict_do_nothing(),
                    placed,
                )

    @translated
    def set_counters(self) -> None:
        """Lets PostgreSQL number new rows after those that came with numbers of their own."""
        if self._engine.dialect.name != "postgresql":
            return
        for table in self._known.sorted_tables:
            column = table.autoincrement_column
            if column is None:
                continue
            with self._engine.begin() as connection:
                last = connection.execute(select(func.max(column))).scalar()
                place = func.pg_get_serial_sequence(table.name, column.name)
                if last:
                    connection.execute(select(func.setval(place, last)))

    @translated
    def mark(self) -> str | None:
        """What a migration into this store noted here; None when there was none."""
        table = self._known.tables[_MARK_TABLE]
        with self._engine.connect() as connection:
            asked = select(table.c.value).where(table.c.key == _MARK)
            return connection.execute(asked).scalar()

    @translated
    def set_mark(self, value: str) -> None:
        """Notes on the default experiment what a migration is at, over what was there."""
        table = self._known.tables[_MARK_TABLE]
        row = {"key": _MARK, "value": value, "experiment_id": _DEFAULT_EXPERIMENT}
        with self._engine.begin() as connection:
            connection.execute(delete(table).where(table.c.key == _MARK))
            connection.execute(insert(table), row)

    @translated
    def num_elsewhere(self) -> int:
        """Runs and checkpoints whose artifacts lie outside the root: these are not moved."""
        number = 0
        for name, column in (("runs", "artifact_uri"), ("logged_models", "artifact_location")):
            number += sum(not str(row[column]).startswith(_ROOT) for row in self.rows(name))
        return number

    def close(self) -> None:
        """Gives the connections back."""
        self._engine.dispose()

    @translated
    def insert(self, name: str, row: Row) -> Any:
        """Writes a row that the database numbers; returns the number."""
        table = self._known.tables[name]
        with self._engine.begin() as connection:
            done = connection.execute(insert(table), self._placed(table, row))
        return (done.inserted_primary_key or (None,))[0]

    def rows(self, name: str) -> Iterator[Row]:
        """All rows of a table by its key, places of artifacts as `{root}/...`."""
        table = self._known.tables[name]
        columns = [column for where, column in PATH_COLUMNS if where == name]
        asked = select(table).order_by(*table.primary_key.columns)
        if name == _MARK_TABLE:
            asked = asked.where(table.c.key != _MARK)
        with self._engine.connect() as connection:
            for row in connection.execution_options(yield_per=_CHUNK).execute(asked).mappings():
                yield {**row, **{c: _general(row[c], self.root) for c in columns}}

    def _placed(self, table: Table, row: Row) -> Row:
        columns = [column for where, column in PATH_COLUMNS if where == table.name]
        return {**row, **{c: _particular(row[c], self.root) for c in columns}}

    def _root_of_default(self) -> str:
        table = self._known.tables["experiments"]
        asked = select(table.c.artifact_location).where(
            table.c.experiment_id == _DEFAULT_EXPERIMENT
        )
        with self._engine.connect() as connection:
            place = connection.execute(asked).scalar()
        if not place:
            raise ConfigError("expected the default experiment (id 0) in the store, found none")
        return str(place).rpartition("/")[0]


def _general(place: str | None, root: str) -> str | None:
    for prefix in (root, f"file://{root}"):
        if place is not None and (place == prefix or place.startswith(f"{prefix}/")):
            return _ROOT + place.removeprefix(prefix)
    return place


def _particular(place: str | None, root: str) -> str | None:
    is_ours = place is not None and place.startswith(_ROOT)
    return root + place.removeprefix(_ROOT) if is_ours and place is not None else place


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    for row in rows:
        some.append(row)
        if len(some) == _CHUNK:
            yield some
            some = []
    if some:
        yield some


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
