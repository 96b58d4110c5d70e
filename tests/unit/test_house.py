"""The size of the house: modules and functions stay small enough to be read at one sitting."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for room in ("harness", "eval") for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_stay_under_300_lines_and_functions_under_60(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    long = [
        f"{node.name}: {(node.end_lineno or 0) - node.lineno + 1}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert not long


def test_no_module_is_named_after_nothing() -> None:
    empty = {"utils", "helpers", "common", "manager", "misc", "handler"}
    assert not [path for path in MODULES if path.stem in empty]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_lock_pins_torch_once(kind: str) -> None:
    lines = (ROOT / "requirements" / f"{kind}.txt").read_text().splitlines()
    (torch,) = [line for line in lines if line.startswith("torch==")]
    assert torch.endswith("+cpu") == (kind == "cpu")
