"""Figures as plotly draws them, and as PNG files where a browser is there."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kaleido
import plotly
import plotly.graph_objects
import pytest
from fakes.bench_results import bench_result, bench_row, interval
from fakes.memory_store import MemoryStore

from eval.result import BenchResult, Interval
from harness.tracking import names
from harness.tracking.figures import bench_figures, training_curves
from harness.tracking.pictures import MISSING, write_pngs
from harness.tracking.records import Checkpoint


def checkpoint(step: int, **metrics: float) -> Checkpoint:
    return Checkpoint(
        model_id=f"m-{step}",
        run_id="r",
        name=f"epoch-{step}",
        path=Path("x"),
        step=step,
        epoch=step,
        digest="ab" * 32,
        num_bytes=1,
        is_uploaded=False,
        params={},
        tags={},
        metrics={key.replace("__", "/"): value for key, value in metrics.items()},
    )


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


@pytest.fixture
def result() -> BenchResult:
    """A drafter at two K and two concurrencies; K = 2 decodes faster."""
    rows = [
        bench_row(
            "a",
            "d" * 64,
            k,
            concurrency=concurrency,
            decode_speedup=interval(1.5 - 0.1 * k - 0.01 * concurrency),
            acceptance_rate_at=(0.5,) * k,
            category=category,
        )
        for k in (2, 3)
        for concurrency in (1, 4)
        for category in ("all", "chat", "code")
    ]
    found = bench_result(tuple(rows[:1] + rows[6:7]), {"a": Path("/a")})
    return found.model_copy(update={"results": tuple(rows)})


def test_each_drafter_is_drawn_at_its_fastest_k(result: BenchResult) -> None:
    drawn = bench_figures(result)
    (bar,) = drawn["figures/acceptance_by_position"].data
    assert (bar.name, list(bar.x), list(bar.y)) == (
        "a, K = 2",
        ["position 1", "position 2"],
        [0.5, 0.5],
    )
    (line,) = drawn["figures/speedup_by_concurrency"].data
    assert list(line.x) == ["1", "4"]
    assert list(line.y) == pytest.approx([1.29, 1.26])
    assert list(line.error_y.array) == pytest.approx([0.05, 0.05])
    assert list(line.error_y.arrayminus) == pytest.approx([0.05, 0.05])


def test_categories_stand_beside_one_another_at_the_lowest_concurrency(
    result: BenchResult,
) -> None:
    (bar,) = bench_figures(result)["figures/acceptance_by_category"].data
    assert list(bar.x) == ["chat", "code"]
    assert [bar.base + height for height in bar.y] == pytest.approx([1.6, 1.6])


def test_a_bench_of_one_category_is_drawn_over_all_prompts(result: BenchResult) -> None:
    pooled = tuple(row for row in result.results if row.category == "all")
    one = result.model_copy(update={"results": pooled})
    (bar,) = bench_figures(one)["figures/acceptance_by_category"].data
    assert list(bar.x) == ["all"]


def test_a_figure_without_an_interval_has_no_whisker(result: BenchResult) -> None:
    exact = result.results[0].model_copy(update={"decode_speedup": Interval(value=1.3)})
    one = result.model_copy(update={"results": (exact,)})
    (line,) = bench_figures(one)["figures/speedup_by_concurrency"].data
    assert (list(line.error_y.array), list(line.error_y.arrayminus)) == ([0.0], [0.0])


def test_the_curves_of_a_resumed_training_go_on_where_it_was() -> None:
    found = traces(
        training_curves(
            [3.0, 2.0, 1.0],
            10,
            [checkpoint(5, val__loss=4.0), checkpoint(13, val__loss=1.5, val__acceptance_length=2)],
        )
    )
    assert list(found["training loss"].x) == [11, 12, 13]
    assert list(found["training loss"].y) == [3.0, 2.0, 1.0]
    assert list(found["validation loss"].x) == [5, 13]
    assert list(found["walk, replayed"].y) == [2.0]
    assert "trainer's estimate" not in found, "what was not computed is not drawn"


def test_without_a_browser_there_is_no_picture_and_the_run_says_so(
    store: MemoryStore, tmp_path: Path, result: BenchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(jobs: Sequence[Any]) -> None:
        raise RuntimeError("no Chrome")

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", fail)
    drawn = bench_figures(result)
    assert write_pngs({"x": drawn["figures/acceptance_by_position"]}, tmp_path) == ()
    with store.start_run(names.KIND_BENCH, "bench", experiment=names.EXPERIMENT_BENCH) as run:
        run.log_figures(drawn)
    assert store.get_run(run.run_id).tags[names.TAG_PICTURES] == MISSING
    page = store.read_text(run.run_id, "figures/acceptance_by_position.html")
    assert page is not None
    assert 'src="http' not in page, "nothing is fetched"
    assert plotly.offline.get_plotlyjs() in page, "and the program that draws is whole"


def test_a_picture_lies_beside_its_page(
    store: MemoryStore, result: BenchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(jobs: Sequence[Any]) -> None:
        for job in jobs:
            assert job["opts"]["format"] == "png"
            Path(job["path"]).write_text(job["fig"]["layout"]["title"]["text"])

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", draw)
    with store.start_run(names.KIND_BENCH, "bench", experiment=names.EXPERIMENT_BENCH) as run:
        run.log_figures(bench_figures(result))
    assert (
        store.read_text(run.run_id, "figures/acceptance_by_position.png")
        == "Acceptance by position in the draft"
    )
    assert names.TAG_PICTURES not in store.get_run(run.run_id).tags


def test_without_kaleido_there_is_no_png_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    assert write_pngs({"a": plotly.graph_objects.Figure()}, tmp_path) == ()
    assert "expected the package kaleido" in caplog.text
