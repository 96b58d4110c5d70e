"""Text for the MLflow UI and for model cards: tables, and links to pages of the UI."""

from collections.abc import Iterable, Sequence

_GAP = "&emsp;"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], gap: str = "") -> str:
    """A table without a line end behind it; `gap` stands behind what each cell says."""
    lines = [head, *rows]
    told = ["| " + " | ".join(f"{_cell(cell)}{gap}" for cell in line) + " |" for line in lines]
    told.insert(1, "| " + " | ".join([":---"] * len(head)) + " |")
    return "\n".join(told)


def page_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The same for a page of the MLflow UI, which leaves no room between columns."""
    return table(head, rows, _GAP)


def run_link(text: str, run_id: str | None) -> str:
    """A link to a run's page; without an id the text alone."""
    return f"[{_cell(text)}](#/runs/{run_id})" if run_id else f"`{text}`"


def _cell(value: object) -> str:
    """One cell: no value is a dash, and nothing in it can end the cell or the line."""
    return "-" if value is None else " ".join(str(value).split()).replace("|", "\\|")
