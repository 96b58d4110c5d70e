"""Tiers by folder: unit runs always, integration with --integration, browser with --browser."""

import gc
import os
import signal
from pathlib import Path

import pytest

TIERS = ("integration", "browser")
_ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Each test, and whatever it starts, computes on one core: threads that wait for a core which
another process holds made some twenty times slower, and the bits of a sum depend on their number.
Set before torch is imported, here and in every child."""

for _name, _value in _ONE_CORE.items():
    os.environ.setdefault(_name, _value)

gc.disable()  # until all is imported: looking through torch and its like took 5 of 13 s


def pytest_addoption(parser: pytest.Parser) -> None:
    for tier in TIERS:
        parser.addoption(f"--{tier}", action="store_true", help=f"run the tests in tests/{tier}")


def pytest_configure(config: pytest.Config) -> None:
    # PNGs of figures cost five seconds each time: only the browser tier draws them.
    if not config.getoption("--browser"):
        os.environ["BROWSER_PATH"] = "/nonexistent"
    # A shell that starts us in the background ignores SIGINT, and our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))
            if not config.getoption(f"--{tier}"):
                item.add_marker(pytest.mark.skip(reason=f"needs --{tier}"))
