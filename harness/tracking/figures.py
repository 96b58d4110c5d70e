"""Figures of a bench and of a training, as plotly draws them: to be looked at in the MLflow UI."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.page import ends, short_names
from eval.result import ALL, BenchResult, BenchRow, Interval
from harness.tracking import names
from harness.tracking.measurements import best_row, ranked_rows
from harness.tracking.records import Checkpoint
from harness.tracking.run import HtmlFigure

FOLDER = "figures"
_CURVES = {
    names.METRIC_VAL_ACCEPTANCE_LENGTH: "walk, replayed",
    names.METRIC_VAL_EVERYWHERE_LENGTH: "all positions, replayed",
    names.METRIC_VAL_ESTIMATED_LENGTH: "trainer's estimate",
}


def bench_figures(result: BenchResult) -> dict[str, HtmlFigure]:
    """Acceptance by position and by category, speedup over concurrency; each drafter a colour."""
    shown = short_names(result.spec.arm_names)
    drafters = dict.fromkeys(row.drafter for row in ranked_rows(result))
    best = {drafter: best_row(result, drafter) for drafter in drafters}
    lowest = min(result.spec.concurrency)
    by_category = [
        row
        for row in result.results
        if row.category != ALL and row.concurrency == lowest and row.k == best[row.drafter].k
    ]
    return {
        f"{FOLDER}/acceptance_by_position": _by_position(best, shown),
        f"{FOLDER}/acceptance_by_category": _by_category(by_category or best.values(), shown),
        f"{FOLDER}/speedup_by_concurrency": _by_concurrency(result, best, shown),
    }


def training_curves(
    losses: Sequence[float], first_step: int, checkpoints: Sequence[Checkpoint]
) -> HtmlFigure:
    """Training loss by step, and above it what validation said of each checkpoint.

    Args:
        losses: Of the steps of this attempt.
        first_step: Steps that were done before it.
        checkpoints: Of the run, with their figures.
    """
    subplots = _subplots()
    figure = subplots.make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08,
        subplot_titles=("acceptance length in validation", "loss"),
    )  # fmt: skip
    for key, label in _CURVES.items():
        known = [c for c in checkpoints if key in c.metrics]
        if known:
            figure.add_scatter(
                x=[c.step for c in known], y=[c.metrics[key] for c in known],
                name=label, mode="lines+markers", row=1, col=1,
            )  # fmt: skip
    steps = list(range(first_step + 1, first_step + len(losses) + 1))
    figure.add_scatter(x=steps, y=list(losses), name="training loss", row=2, col=1)
    known = [c for c in checkpoints if names.METRIC_VAL_LOSS in c.metrics]
    figure.add_scatter(
        x=[c.step for c in known], y=[c.metrics[names.METRIC_VAL_LOSS] for c in known],
        name="validation loss", mode="lines+markers", row=2, col=1,
    )  # fmt: skip
    figure.update_xaxes(title_text="step", row=2, col=1)
    return _dressed(figure, "Training")


def _by_position(best: Mapping[str, BenchRow], shown: Mapping[str, str]) -> HtmlFigure:
    figure = _graph().Figure()
    for name, row in best.items():
        figure.add_bar(
            x=[f"position {i}" for i in range(1, row.k + 1)],
            y=list(row.acceptance_rate_at),
            name=f"{shown[name]}, K = {row.k}",
            text=[f"{rate:.0%}" for rate in row.acceptance_rate_at],
        )
    figure.update_yaxes(title_text="accepted, of all drafts", tickformat=".0%", range=[0, 1])
    return _dressed(figure, "Acceptance by position in the draft")


def _by_category(rows: Any, shown: Mapping[str, str]) -> HtmlFigure:
    figure = _graph().Figure()
    for name in dict.fromkeys(row.drafter for row in rows):
        own = [(r.category, r.acceptance_length) for r in rows if r.drafter == name]
        known = [(category, length) for category, length in own if length]
        figure.add_bar(
            x=[category for category, _ in known],
            y=[length.value - 1 for _, length in known],
            base=1.0,
            error_y=whiskers([length for _, length in known]),
            name=shown[name],
        )
    figure.update_yaxes(title_text="tokens per step")
    return _dressed(figure, "Acceptance length by kind of prompt")


def _by_concurrency(
    result: BenchResult, best: Mapping[str, BenchRow], shown: Mapping[str, str]
) -> HtmlFigure:
    figure = _graph().Figure()
    for name, chosen in best.items():
        rows = sorted(
            (row for row in result.pooled() if row.drafter == name and row.k == chosen.k),
            key=lambda row: row.concurrency,
        )
        figure.add_scatter(
            x=[str(row.concurrency) for row in rows],
            y=[row.decode_speedup.value for row in rows],
            error_y=whiskers([row.decode_speedup for row in rows]),
            name=f"{shown[name]}, K = {chosen.k}",
            mode="lines+markers",
            marker={"size": 10},
        )
    figure.add_hline(y=1.0, line_dash="dash", annotation_text="the verifier alone")
    figure.update_xaxes(title_text="requests at once", type="category")
    figure.update_yaxes(title_text="decode speedup")
    return _dressed(figure, "Decode speedup over requests at once, with intervals")


def whiskers(figures: Sequence[Interval]) -> dict[str, Any]:
    """Error bars from value to low and to high; none where there is no interval."""
    known = [ends(figure) for figure in figures]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for _, value, high in known],
        "arrayminus": [value - low for low, value, _ in known],
    }


def _dressed(figure: Any, title: str) -> HtmlFigure:
    figure.update_layout(title=title, template="plotly_white", barmode="group", showlegend=True)
    drawn: HtmlFigure = figure
    return drawn


def _graph() -> Any:
    # Late: plotly takes a second, which most who import this module do not need.
    from plotly import graph_objects  # noqa: PLC0415

    return graph_objects


def _subplots() -> Any:
    from plotly import subplots  # noqa: PLC0415

    return subplots
