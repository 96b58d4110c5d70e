"""Text for the MLflow UI and for model cards: tables, and links to pages of the UI."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table without a line end behind it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def run_link(text: str, run_id: str | None) -> str:
    """A link to a run's page; without an id the text alone."""
    return f"[{_cell(text)}](#/runs/{run_id})" if run_id else f"`{text}`"


def _cell(value: object) -> str:
    """One cell: no value is a dash, and nothing in it can end the cell or the line."""
    return "-" if value is None else " ".join(str(value).split()).replace("|", "\\|")
