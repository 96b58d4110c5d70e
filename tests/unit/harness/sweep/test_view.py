import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes.sweep_world import BASE, World, fails, trains

from harness.config.load import dump_yaml, load_config
from harness.config.train import TrainConfig
from harness.sweep.figures import importances, log_figures
from harness.sweep.records import Event, Reason, TrialSpec
from harness.sweep.view import COLUMNS, best_config, best_trial, conclusion, explain, overview


def test_the_key_that_decides_is_the_most_important_and_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def write_pngs(figures: Mapping[str, object], folder: Path) -> tuple[Path, ...]:
        calls.append(list(figures))
        paths = tuple(folder / f"{name}.png" for name in figures)
        for path in paths:
            path.write_bytes(b"png")
        return paths

    monkeypatch.setattr("harness.tracking.run.write_pngs", write_pngs)
    world = World(tmp_path, n_trials=12)
    _, study, _ = world.run()
    found = importances(study)
    assert max(found, key=lambda key: found[key]) == "lr"
    parent = next(run for run in world.store.runs.values() if run.kind == "sweep")
    names = log_figures(study, world.store.attach_run(parent.run_id))
    assert {"history", "importance", "parallel", "slice"} <= set(names)
    page = world.store.artifacts[parent.run_id, "sweep/importance.html"]
    assert "<script" in page
    assert calls == [list(names)], "one browser draws them all"
    pictures = {name for run_id, name in world.store.artifacts if run_id == parent.run_id}
    assert {f"sweep/{name}.png" for name in names} <= pictures
    assert "cdn.plot.ly" not in page.split("</head>")[0]


def test_too_few_trials_are_not_drawn(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=1)
    _, study, _ = world.run()
    assert importances(study) == {}


def test_every_trial_says_how_far_it_came_and_why_it_ended(tmp_path: Path) -> None:
    def script(spec: TrialSpec) -> list[Event]:
        return fails(Reason.NAN, "the loss is nan")(spec) if spec.number == 2 else trains(spec)

    halving = {"type": "successive_halving", "min_resource": 1, "reduction_factor": 2}
    world = World(tmp_path, script, n_trials=6, pruner=halving, baselines=[{"lr": BASE.lr}])
    _, study, _ = world.run()
    seen = overview(study, study.trials())
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in seen.rows]
    assert [row["trial"] for row in rows] == list(range(6))
    assert rows[0]["what differs"] == "(base)"
    assert rows[1]["why"] == "as trial 0"
    assert (rows[2]["stage"], rows[2]["why"]) == ("failed", "NaN")
    assert any(str(row["why"]).startswith("behind after epoch") for row in rows)
    assert explain(study.trials()) == ("trial 2: NaN: the loss is nan",)
    assert (seen.num_finished, seen.num_failed) == (6, 1)
    assert seen.num_pruned >= 1


def test_the_best_point_is_a_configuration_that_trains(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=3, baselines=[{"lr": 2e-3}])
    _, study, _ = world.run()
    trial = best_trial(study)
    assert trial is not None
    assert trial.number == 1
    path = tmp_path / "best.yaml"
    path.write_text(dump_yaml(best_config(study, trial)))
    loaded = load_config(TrainConfig, path)
    assert loaded.lr == 2e-3
    assert loaded.replay_k == world.config.k
    assert loaded.model_copy(update={"name": None, "lr": BASE.lr, "replay_k": None}) == BASE
    assert "nothing is claimed" in conclusion(study)


def test_trials_are_plain_documents(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=2)
    _, study, _ = world.run()
    for trial in study.trials():
        assert json.loads(trial.model_dump_json())["number"] == trial.number
