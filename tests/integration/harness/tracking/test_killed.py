"""A promotion killed with SIGKILL between any two of its writes, over a real store."""

import json
from pathlib import Path

from fakes.command_line import run_harness, start_python
from fakes.trained import bench, train

from harness.settings import Settings
from harness.tracking.store import open_store

ROOT = Path(__file__).parents[4]
WRITES = (
    "commit of INSERT INTO model_version_tags",
    "line of the log",
    "second half of the line",
    "fsync",
    "commit of UPDATE registered_model_aliases SET",
    "commit of INSERT INTO registered_model_aliases",
    "commit of UPDATE runs SET",
)
"""Of all those that a promotion makes: the version, both lines, both aliases, the record's end."""
BROKEN_OFF = ([], ["promoting"], ["promoting", "promoted"])
ENDED = {
    "again": 0,
    "aliases": {"champion": 2, "previous": 1},
    "states": ["superseded", "champion"],
    "running": [],
    "check": 0,
}
"""What the same command, run again, makes of each case."""
KILLER = ROOT / "tests" / "fakes" / "killed_promote.py"


def test_killed_between_any_two_writes_one_champion_is_whole_and_the_same_command_ends_well(
    settings: Settings,
) -> None:
    root = settings.root_dir
    store = open_store(settings)
    run_id, models = train(store, settings)
    bench(store, models, root / "verifier")
    (root / "policy.yaml").write_text("min_acceptance_length: 1.3\n")
    digests = [checkpoint.digest for checkpoint in store.checkpoints(run_id)]
    words = ("--name", "tiny", "--policy", "policy.yaml")
    assert run_harness(root, "promote", f"run:{run_id}@0", *words).returncode == 0

    killer = start_python(
        root, str(KILLER), str(settings.mlruns_dir), "promote", f"run:{run_id}@1", *words
    )
    out, error = killer.communicate(timeout=500)
    assert (killer.returncode, "Traceback" in error) == (0, False), error
    cases = [json.loads(line) for line in out.splitlines()]
    assert {*WRITES} <= {case["before"] for case in cases}
    champions = [case["champion"] for case in cases]
    assert champions == sorted(champions)
    assert {*champions} == {1, 2}
    for case in cases:
        assert case["digest"] == digests[case["champion"] - 1], case
        assert case["actions"][:2] == ["promoting", "promoted"], case
        assert case["actions"][2:] in BROKEN_OFF, case
        ended = {key: case[key] for key in ENDED}
        assert ended == ENDED, case
        assert case["actions_then"][-2:] == ["promoting", "promoted"], case
