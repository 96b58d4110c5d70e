"""What a person sees: runs in a table and side by side, figures, the model's pages, the report."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from fakes.command_line import run_harness
from fakes.real_project import MODEL, VERIFIER

from harness.tracking import names

from .conftest import Site

pytestmark = pytest.mark.timeout(900)
COLUMNS = ("acceptance_length", "decode_speedup", "head_dim", "finetune.parent", "lr")
MEASURED = COLUMNS[:2]


def test_the_runs_table_shows_both_trainings_with_their_figures(
    site: Site, page: Any, screenshots: Path
) -> None:
    page.goto(f"{site.address}/#/experiments/{_experiment_id(site, site.base)}/runs")
    runs = [site.store.get_run(run_id) for run_id in (site.base, site.finetuned)]
    for run in runs:
        assert run.name.startswith(f"train {VERIFIER} hd64 lr")
        page.get_by_text(run.name, exact=True).first.wait_for()
    _choose_columns(page)
    for column in COLUMNS:
        page.get_by_role("columnheader", name=column).first.wait_for()
    page.screenshot(path=screenshots / "runs_table.png")
    for run in runs:
        for key in MEASURED:
            _find_number(page, run.metrics[key])
    page.get_by_text(f"run:{site.base}", exact=True).first.wait_for()


def test_two_runs_stand_side_by_side(site: Site, page: Any, screenshots: Path) -> None:
    runs = f'["{site.base}","{site.finetuned}"]'
    experiment = _experiment_id(site, site.base)
    page.set_viewport_size({"width": 1400, "height": 2600})
    page.goto(f'{site.address}/#/compare-runs?runs={runs}&experiments=["{experiment}"]')
    for key in MEASURED:
        page.get_by_text(key, exact=True).first.wait_for()
        for run_id in (site.base, site.finetuned):
            _find_number(page, site.store.get_run(run_id).metrics[key])
    page.screenshot(path=screenshots / "compare_runs.png", full_page=True)


@pytest.mark.parametrize(
    ("which", "says"), [("bench_id", "intervals over prompts"), ("finetuned", "Finetuned from")]
)
def test_a_runs_page_tells_its_result_in_words(
    site: Site, page: Any, screenshots: Path, which: str, says: str
) -> None:
    page.goto(f"{site.address}/#/runs/{getattr(site, which)}")
    page.get_by_role("button", name="Show more").or_(page.get_by_text("Show more")).first.click()
    page.get_by_text(says).first.wait_for()
    page.screenshot(path=screenshots / f"run_{which.removesuffix('_id')}.png")


@pytest.mark.parametrize(
    ("which", "name"),
    [("bench_id", "speedup_by_concurrency"), ("finetuned", "training_curves")],
)
def test_a_figure_renders(site: Site, page: Any, screenshots: Path, which: str, name: str) -> None:
    run_id = getattr(site, which)
    place = f"experiments/{_experiment_id(site, run_id)}/runs/{run_id}/artifacts/figures/{name}"
    page.goto(f"{site.address}/#/{place}.html")
    page.frame_locator("iframe").locator(".main-svg").first.wait_for()
    page.screenshot(path=screenshots / f"figure_{name}.png")
    assert names.TAG_PICTURES not in site.store.get_run(run_id).tags
    page.get_by_text(f"{name}.png", exact=True).first.click()
    page.locator("img[src^='blob:']").first.wait_for()


def test_the_model_shows_its_champion(site: Site, page: Any, screenshots: Path) -> None:
    page.goto(f"{site.address}/#/models/{MODEL}")
    page.get_by_role("row").filter(has_text="Version 2").get_by_text("champion").first.wait_for()
    old = page.get_by_role("row").filter(has_text="Version 1")
    old.get_by_text("previous").first.wait_for()
    assert old.get_by_text("champion", exact=True).count() == 0
    page.screenshot(path=screenshots / "model.png")


def test_a_version_shows_its_lineage_and_the_decision(
    site: Site, page: Any, screenshots: Path
) -> None:
    page.set_viewport_size({"width": 1400, "height": 1500})
    page.goto(f"{site.address}/#/models/{MODEL}/versions/2")
    for text in ("Lineage", "Decision", "in place of version 1", "low end >= 1.05"):
        page.get_by_text(text).first.wait_for()
    links = {link.get_attribute("href") for link in page.get_by_role("link").all()}
    for run_id in (site.base, site.finetuned, site.bench_id):
        assert any(link and link.endswith(f"#/runs/{run_id}") for link in links), run_id
    page.screenshot(path=screenshots / "model_version.png", full_page=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("report", {"viewport": {"width": 1100, "height": 900}}),
        ("report_dark", {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"}),
        ("report_phone", {"viewport": {"width": 390, "height": 800}}),
    ],
)
def test_the_report_has_no_error_and_fits(
    report: Path, browser: Any, screenshots: Path, name: str, options: dict[str, Any]
) -> None:
    context = browser.new_context(**options)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(report.as_uri())
    page.screenshot(path=screenshots / f"{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert said == [report.as_uri()]
    context.close()


def test_the_report_is_printed_on_a_few_pages(
    report: Path, browser: Any, screenshots: Path
) -> None:
    """Width and height of A4 at 96 dots an inch; nothing is cut off at the right."""
    context = browser.new_context(viewport={"width": 794, "height": 1123})
    page = context.new_page()
    page.goto(report.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=screenshots / "report_print.png", full_page=True)
    printed = page.pdf(path=screenshots / "report.pdf", format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 6
    context.close()


@pytest.fixture(scope="session")
def report(site: Site) -> Path:
    """The page about both drafters."""
    path = site.root / "report.html"
    both = (f"run:{site.base}", f"run:{site.finetuned}")
    done = run_harness(site.root, "report", *both, "--out", str(path))
    assert done.returncode == 0, done.stderr
    return path


def _choose_columns(page: Any) -> None:
    page.get_by_role("button", name="Columns").click()
    for column in COLUMNS:
        page.get_by_placeholder("Search columns").fill(column)
        whole = re.compile(rf"^\s*{re.escape(column)}\s*$")  # not head_dim_source, not hp/head_dim
        item = page.locator('[class*="tree-treenode"]').filter(has_text=whole).last
        item.locator('[class*="tree-checkbox"]').first.click()
    page.keyboard.press("Escape")


def _find_number(page: Any, value: float) -> None:
    """Waits to see a number that begins like this one; how many digits are shown, cut or rounded,
    is the UI's taste."""
    cut, rounded = math.floor(value * 100) / 100, round(value, 3)
    digits = "|".join(re.escape(f"{number:g}") for number in (cut, rounded))
    shown = page.get_by_text(re.compile(rf"^({digits})\d*")).filter(visible=True)
    shown.first.wait_for()


def _experiment_id(site: Site, run_id: str) -> str:
    name = site.store.get_run(run_id).experiment
    found = site.store.experiment_names()  # type: ignore[attr-defined]
    return next(key for key, value in found.items() if value == name)
