"""What `harness sweep` shows and changes of a sweep by its name; no training runs."""

import json
import re
from pathlib import Path

import pytest
import yaml
from fakes.sweep_world import BASE, World, fails, trains
from typer.testing import CliRunner

from harness.commands.sweep import app
from harness.config.load import dump_yaml, load_config
from harness.config.train import TrainConfig
from harness.errors import ConfigError
from harness.sweep.records import Reason, TrialState
from harness.sweep.session import prepare, require_unused
from harness.sweep.verdicts import front, rank


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A finished sweep of eight trials, of which the third one failed."""
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return begin(tmp_path)


def begin(root: Path, **changes: object) -> World:
    folder = root / "mlruns" / "sweeps" / "tiny"
    folder.mkdir(parents=True)
    found = World(folder, n_trials=8, **changes)  # type: ignore[arg-type]
    found.script = lambda spec: fails(Reason.NAN)(spec) if spec.number == 2 else trains(spec)
    (folder / "sweep.yaml").write_text(dump_yaml(found.config))
    (folder / "train.yaml").write_text(dump_yaml(BASE))
    found.run()
    return found


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_importance_has_a_share_for_each_key(world: World) -> None:
    output = shown("importance", "tiny")
    assert "importance for acceptance_length" in output
    shares = {
        line.split()[0]: float(line.split()[-1])
        for line in output.splitlines()
        if line.split() and line.split()[0] in world.config.space
    }
    assert set(shares) == {"lr", "ttt_steps"}
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.01)


def test_status_is_every_trial_and_why_it_ended(world: World) -> None:
    document = json.loads(shown("status", "tiny", "--json"))
    assert [trial["number"] for trial in document] == list(range(8))
    assert document[2]["facts"]["reason"] == "NaN"
    assert document[0]["facts"]["slot"] == "s0"
    assert "trial 2: NaN: so it went" in shown("status", "tiny")


def test_the_best_point_is_a_training(world: World, tmp_path: Path) -> None:
    best = rank(world.config, world.open_study().trials())[0]
    assert f"trial {best.number} of tiny" in shown("best", "tiny")
    out = tmp_path / "best.yaml"
    shown("export", "tiny", "--out", str(out))
    assert load_config(TrainConfig, out).lr == best.params["lr"]
    shown("export", "tiny", "--trial", "1", "--out", str(out))
    assert load_config(TrainConfig, out).lr == world.open_study().trial(1).params["lr"]


def test_a_failed_trial_is_retried_once_by_the_next_call(world: World) -> None:
    shown("retry", "tiny")
    with pytest.raises(ConfigError, match="expected failed trials of 'tiny' to retry, found none"):
        shown("retry", "tiny")
    _, study, _ = world.run()
    again = study.trials()[-1]
    assert len(study.trials()) == 9
    assert again.params == study.trial(2).params
    assert again.origin == "retry of 2"
    assert again.state is TrialState.COMPLETE


def test_of_several_objectives_the_front_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    metrics = ("acceptance_length", "train_s", "num_parameters")
    world = begin(tmp_path, objectives=[{"metric": metric} for metric in metrics])
    output = shown("best", "tiny")
    best = front(world.config, world.open_study().trials())
    assert len(best) > 1
    assert all(metric in output for metric in metrics)
    rows = [re.match(r"\W*(\d+)\W+lr", line) for line in output.splitlines()]
    assert [int(row[1]) for row in rows if row] == [trial.number for trial in best]


def test_no_resume_refuses_a_sweep_that_was_begun(world: World, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE.model_dump(mode="json")))
    config = world.config.model_copy(update={"train": str(tmp_path / "base.yaml")})
    prepared = prepare(config, world.settings.model_copy(update={"root_dir": tmp_path}))
    with pytest.raises(ConfigError, match="--no-resume: expected no sweep 'tiny' yet"):
        require_unused(prepared)
    require_unused(prepare(config.model_copy(update={"name": "other"}), world.settings))
