"""A project with two trainings, measured in vLLM, one of them champion; its MLflow UI; a browser.

All of it through the command line: two trainings, one bench, two promotions; some two minutes.
"""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fakes import real_project

from harness.commands.ui import serve
from harness.tracking import names
from harness.tracking.store import Store, open_store

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WAIT_MS = 60_000
_REMEMBERED = (
    {"name": "mlflow.workflowType_v1", "value": '"machine_learning"'},
    {"name": "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "value": "true"},
)
"""The UI keeps both in the browser; the server has no setting for either (docs/compare.md)."""


class Site(NamedTuple):
    """The UI and what is in it."""

    address: str
    root: Path
    store: Store
    base: str
    finetuned: str
    bench_id: str


@pytest.fixture(scope="session")
def screenshots(pytestconfig: pytest.Config) -> Path:
    """Where a person looks at what was seen."""
    folder = pytestconfig.rootpath / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: make browser installs one")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[Site]:
    """A base and a finetune of it, measured together, each promoted by the policy."""
    root = tmp_path_factory.mktemp("project")
    real_project.write_project(root)
    base = real_project.train(root, "train")
    finetuned = real_project.train(root, "finetune", "--finetune-from", f"run:{base}")
    both = [word for run_id in (base, finetuned) for word in ("--drafter", f"run:{run_id}")]
    real_project.done(root, "bench", "bench.yaml", *both)
    for run_id in (base, finetuned):
        real_project.done(root, "promote", f"run:{run_id}", "--policy", "policy.yaml")
    settings = real_project.settings_of(root)
    store = open_store(settings)
    (bench,) = store.find_runs(kind=names.KIND_BENCH)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with serve(settings, port) as (address, _):
        yield Site(address, root, store, base, finetuned, bench.run_id)


@pytest.fixture
def page(browser: Any, site: Site) -> Iterator[Any]:
    """A page of somebody who has been here before."""
    remembered = [{"origin": site.address, "localStorage": list(_REMEMBERED)}]
    context = browser.new_context(
        viewport={"width": 2000, "height": 1000},
        storage_state={"cookies": [], "origins": remembered},
    )
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    yield opened
    context.close()
