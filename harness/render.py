"""The screen: results on stdout, everything else on stderr. The only room that prints.

Much of what is shown comes out of files that strangers wrote: it is shown as text, never obeyed as
markup or as a terminal's escape sequence.
"""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError
from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from eval.progress import ProgressFn
from harness.redaction import redacted

if TYPE_CHECKING:
    from eval.result import Interval

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that turn the writing direction, halves of surrogate pairs."""

_STATE_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}
_WIDTH = 100

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; None is shown as a dash, numbers are right-aligned."""
    _out.print(_build_table(title, columns, rows), soft_wrap=False)


def _build_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold", header_style="bold")
    body = [list(row) for row in rows]
    for index, column in enumerate(columns):
        cells = [row[index] for row in body]
        is_number = bool(cells) and all(isinstance(c, int | float) or c is None for c in cells)
        table.add_column(
            Text(_plain(column)), justify="right" if is_number else "left", overflow="fold"
        )
    for row in body:
        table.add_row(*(_cell(name, value) for name, value in zip(columns, row, strict=True)))
    return table


def _cell(column: str, value: object) -> Text:
    """Checks are green, yellow or red by their state."""
    style = _STATE_STYLES.get(str(value), "") if column == "state" else ""
    return Text(_plain(cell_text(value)), style=style)


def show_facts(title: str, facts: Mapping[str, object]) -> None:
    """Names and values, one a line, on stdout."""
    _out.print(_plain(title), style="bold", markup=False)
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        show_text(f"  {name:<{width}}  {cell_text(value)}", hanging=width + 4)


def show_text(text: str, hanging: int | None = None) -> None:
    """Plain text on stdout, as it is; or wrapped, its further lines indented by `hanging`."""
    text = _plain(text)
    _out.print(text if hanging is None else _wrap(text, hanging), markup=False)


def show_marked(pieces: Iterable[tuple[str, bool]]) -> None:
    """Text on stdout, some of it marked: by colour on a terminal, by [[ and ]] elsewhere."""
    marked = Text()
    for text, is_marked in pieces:
        plain = _plain(text)
        if not is_marked:
            marked.append(plain, style="dim")
        elif _out.is_terminal:
            marked.append(plain, style="bold green")
        else:
            marked.append(f"[[{plain}]]")
    _out.print(marked)


def _wrap(text: str, hanging: int) -> str:
    """Lines of at most 100 columns, broken at spaces only: paths and ids stay whole."""
    return "\n".join(
        textwrap.fill(
            line,
            _WIDTH,
            subsequent_indent=" " * hanging,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        for line in text.split("\n")
    )


def show_output(raw: bytes) -> None:
    """What another process printed, as it came, on stdout."""
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


def show_json(document: BaseModel | str) -> None:
    """A JSON document on stdout, and nothing else with it."""
    text = document if isinstance(document, str) else _dump(document)
    sys.stdout.write(text + "\n")


def log(text: str) -> None:
    """A line about what is going on, on stderr."""
    _err.print(_plain(text), markup=False)


def warn(text: str, hanging: int | None = None) -> None:
    """A warning on stderr, wrapped as `show_text` does."""
    text = _plain(f"warning: {text}")
    _err.print(text if hanging is None else _wrap(text, hanging), style="yellow", markup=False)


def show_error(message: str, hint: str | None) -> None:
    """The error screen: what went wrong, and what to do, on stderr."""
    _err.print(_plain(f"error: {message}"), style="bold red", markup=False)
    if hint:
        _err.print(_plain(f"  -> {hint}"), markup=False)


def cell_text(value: object) -> str:
    """A value as a person reads it: None is a dash, floats keep four significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def interval_text(interval: "Interval | None") -> str | None:
    """`2.03 [1.91, 2.16]`; None stays None."""
    return interval.text() if interval else None


def _plain(text: str) -> str:
    """Text without secrets, whose unprintable characters are spelled out."""
    clean = redacted(text)
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), clean)


def _dump(document: BaseModel) -> str:
    try:
        return document.model_dump_json(indent=2)
    except PydanticSerializationError:
        # A file name that is no UTF-8; JSON can hold it as an escape.
        return json.dumps(document.model_dump(), default=str, indent=2)


TableFn = Callable[[str, Sequence[str], Sequence[Sequence[object]]], None]
"""Told (title, columns, rows), as often as one likes."""


@contextmanager
def live_table() -> Iterator[TableFn]:
    """A table on stderr that changes in place; on a pipe, each row once and when it changes."""
    if not _err.is_terminal:
        yield _plain_rows()
        return
    with Live(console=_err, refresh_per_second=2, transient=True) as live:
        yield lambda title, columns, rows: live.update(_build_table(title, columns, rows))


def _plain_rows() -> TableFn:
    shown: dict[object, str] = {}

    def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        del title
        for row in rows:
            cells = [(n, c) for n, c in zip(columns, row, strict=True) if c is not None]
            text = ", ".join(f"{name} {cell_text(cell)}" for name, cell in cells)
            if shown.get(row[0]) != text:
                shown[row[0]] = text
                log(text)

    return show


@contextmanager
def progress(*, is_plain: bool = False) -> Iterator[ProgressFn]:
    """A progress bar on stderr; on a pipe or beside a live table, a line per tenth of a stage.

    What changes on the way, such as a pace, follows the name of the stage after " | ".
    """
    if is_plain or not _err.is_terminal:
        yield _plain_progress()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_err) as bar:
        tasks: dict[str, TaskID] = {}

        def report(text: str, done: int, total: int) -> None:
            stage = text.partition(" | ")[0]
            if stage not in tasks:
                tasks[stage] = bar.add_task(text, total=total or None)
            bar.update(tasks[stage], description=text, completed=done, total=total or None)

        yield report


def _plain_progress() -> ProgressFn:
    shown: dict[str, int] = {}

    def report(text: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 0
        stage = text.partition(" | ")[0]
        if shown.get(stage) != tenth:
            shown[stage] = tenth
            log(f"{text}: {done}/{total}" if total else text)

    return report
