"""What a person sees: runs in a table and side by side, figures, the model page, the report."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fakes.bench_results import bench_result, bench_row, interval
from fakes.command_line import run_harness
from fakes.trained import train

from eval.result import ALL
from harness.commands.ui import serve
from harness.settings import load_settings
from harness.tracking import names
from harness.tracking.embedded import DATABASE
from harness.tracking.figures import bench_figures
from harness.tracking.measurements import log_bench_result
from harness.tracking.store import Store, open_store

WAIT_MS = 20_000
COLUMNS = ("acceptance_length", "decode_speedup", "head_dim", "finetune.parent", "lr")


class Site(NamedTuple):
    """The UI and what is in it."""

    address: str
    root: Path
    store: Store
    run_ids: tuple[str, str]
    bench_id: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A base and a finetune of it, measured together; the better one is champion."""
    root = tmp_path_factory.mktemp("project")
    uri = f"sqlite:///{root / 'mlruns' / DATABASE}"
    settings = load_settings(root).model_copy(
        update={"tracking_uri": uri, "cache_dir": root / "cache"}
    )
    store = open_store(settings)
    base, base_models = train(store, settings)
    parent = {names.TAG_FINETUNE_PARENT: f"run:{base}", names.TAG_FINETUNE_PARENT_RUN: base}
    finetuned, models = train(store, settings, **parent)
    both = [base_models[1], models[1]]
    bench_id = _bench(store, both)
    store.registry.create_version("tiny", store.get_checkpoint(both[0]), {})
    store.registry.create_version("tiny", store.get_checkpoint(both[1]), {})
    store.registry.set_alias("tiny", names.ALIAS_CHAMPION, 2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with serve(settings, port) as (address, _):
        yield Site(address, root, store, (base, finetuned), bench_id)


def _bench(store: Store, model_ids: list[str]) -> str:
    """A bench run of both, with its figures, as `harness bench` puts them there."""
    checkpoints = [store.get_checkpoint(model_id) for model_id in model_ids]
    drafters = [f"run:{c.run_id}" for c in checkpoints]
    rows = tuple(
        bench_row(
            name,
            checkpoint.digest,
            concurrency=concurrency,
            acceptance_length=interval(1.6 + 0.2 * index),
            decode_speedup=interval(1.2 + 0.15 * index - 0.02 * concurrency),
            category=category,
        )
        for index, (name, checkpoint) in enumerate(zip(drafters, checkpoints, strict=True))
        for concurrency in (1, 4)
        for category in (ALL, "chat", "code")
    )
    paths = {name: c.path for name, c in zip(drafters, checkpoints, strict=True)}
    spec_rows = tuple(row for row in rows if row.concurrency == 1)
    result = bench_result(spec_rows, paths).model_copy(update={"results": rows})
    with store.start_run(
        names.KIND_BENCH, "bench tiny k3 c1-4", experiment=names.EXPERIMENT_BENCH
    ) as run:
        log_bench_result(run, store, result, dict(zip(drafters, model_ids, strict=True)))
        run.log_figures(bench_figures(result))
    return run.run_id


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 2000, "height": 1000})
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    yield opened
    context.close()


def test_the_runs_table_shows_both_trainings_with_their_figures(
    site: Site, page: Any, screenshots: Path
) -> None:
    experiment = _experiment_id(site, site.run_ids[0])
    page.goto(f"{site.address}/#/experiments/{experiment}/runs")
    for name in ("train tiny #1", "train tiny #2"):
        page.get_by_text(name, exact=True).first.wait_for()
    page.get_by_role("button", name="Close").last.click()
    _choose_columns(page)
    for column in COLUMNS:
        page.get_by_role("columnheader", name=column).first.wait_for()
    page.screenshot(path=screenshots / "runs_table.png")
    for shown in ("1.6", "1.8", f"run:{site.run_ids[0]}"):
        page.get_by_text(shown, exact=True).first.wait_for()
    for run_id in site.run_ids:
        run = site.store.get_run(run_id)
        known = {*run.params, *run.metrics, *run.tags}
        assert {*COLUMNS} - {COLUMNS[3]} <= known
    assert COLUMNS[3] in site.store.get_run(site.run_ids[1]).tags


def test_two_runs_stand_side_by_side(site: Site, page: Any, screenshots: Path) -> None:
    runs = ",".join(f'"{run_id}"' for run_id in site.run_ids)
    experiment = _experiment_id(site, site.run_ids[0])
    page.goto(f'{site.address}/#/compare-runs?runs=[{runs}]&experiments=["{experiment}"]')
    page.get_by_text("acceptance_length", exact=True).first.wait_for()
    page.get_by_text("decode_speedup", exact=True).first.wait_for()
    page.screenshot(path=screenshots / "compare_runs.png", full_page=True)


def test_a_runs_page_tells_its_result_in_words(site: Site, page: Any, screenshots: Path) -> None:
    page.goto(f"{site.address}/#/runs/{site.bench_id}")
    page.get_by_text("intervals over prompts").first.wait_for()
    page.screenshot(path=screenshots / "bench_run.png")


def test_a_figure_renders(site: Site, page: Any, screenshots: Path) -> None:
    experiment = _experiment_id(site, site.bench_id)
    name = "figures/speedup_by_concurrency"
    page.goto(
        f"{site.address}/#/experiments/{experiment}/runs/{site.bench_id}/artifacts/{name}.html"
    )
    drawing = page.frame_locator("iframe").locator(".main-svg").first
    drawing.wait_for()
    page.screenshot(path=screenshots / "figure.png")
    assert site.store.get_run(site.bench_id).tags.get(names.TAG_PICTURES) is None


def test_the_model_shows_its_champion(site: Site, page: Any, screenshots: Path) -> None:
    page.goto(f"{site.address}/#/models/tiny")
    row = page.get_by_role("row").filter(has_text="Version 2")
    row.get_by_text("champion").first.wait_for()
    page.screenshot(path=screenshots / "model.png")
    assert page.get_by_role("row").filter(has_text="Version 1").get_by_text("champion").count() == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("report", {"viewport": {"width": 1100, "height": 900}}),
        ("report_dark", {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"}),
        ("report_phone", {"viewport": {"width": 390, "height": 800}}),
    ],
)
def test_the_report_has_no_error_and_fits(
    site: Site, browser: Any, screenshots: Path, name: str, options: dict[str, Any]
) -> None:
    path = site.root / f"{name}.html"
    done = run_harness(site.root, "report", f"run:{site.run_ids[1]}", "--out", str(path))
    assert done.returncode == 0, done.stderr
    context = browser.new_context(**options)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(path.as_uri())
    page.screenshot(path=screenshots / f"{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert said == [path.as_uri()]
    context.close()


def _choose_columns(page: Any) -> None:
    page.get_by_role("button", name="Columns").click()
    for column in COLUMNS:
        page.get_by_placeholder("Search columns").fill(column)
        whole = re.compile(rf"^\s*{re.escape(column)}\s*$")  # not head_dim_source, not hp/head_dim
        item = page.locator('[class*="tree-treenode"]').filter(has_text=whole).last
        item.locator('[class*="tree-checkbox"]').first.click()
    page.keyboard.press("Escape")


def _experiment_id(site: Site, run_id: str) -> str:
    name = site.store.get_run(run_id).experiment
    found = site.store.experiment_names()  # type: ignore[attr-defined]
    return next(key for key, value in found.items() if value == name)
