"""Tiers by folder: unit runs always, integration with --integration, browser with --browser."""

import os
import signal
from pathlib import Path

import pytest

TIERS = ("integration", "browser")


def pytest_addoption(parser: pytest.Parser) -> None:
    for tier in TIERS:
        parser.addoption(f"--{tier}", action="store_true", help=f"run the tests in tests/{tier}")


def pytest_configure(config: pytest.Config) -> None:
    # PNGs of figures cost five seconds each time: only the browser tier draws them.
    if not config.getoption("--browser"):
        os.environ["BROWSER_PATH"] = "/nonexistent"
    # A shell that starts us in the background ignores SIGINT, and our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))
            if not config.getoption(f"--{tier}"):
                item.add_marker(pytest.mark.skip(reason=f"needs --{tier}"))
