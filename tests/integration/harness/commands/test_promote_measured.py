"""Candidate and champion measured together in real vLLM by promote; what it promoted, exported."""

import json
from pathlib import Path

import pytest
from fakes import real_project
from fakes.trained import bench

from harness.drafter.drafter import Drafter, drafter_digest
from harness.tracking import names
from harness.tracking.decisions import DecisionLog
from harness.tracking.measurements import read_bench_result
from harness.tracking.store import Store, open_store

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("real")
    real_project.write_project(root)
    return root


@pytest.fixture(scope="module")
def run_id(root: Path) -> str:
    return real_project.train(root, "train", "--set", "keep_best=4")


@pytest.fixture(scope="module")
def store(root: Path, run_id: str) -> Store:
    return open_store(real_project.settings_of(root))


def test_promote_measures_candidate_and_champion_in_one_bench_and_its_export_is_served(
    root: Path, run_id: str, store: Store
) -> None:
    first, *_, last = store.checkpoints(run_id)
    verifier_digest = store.get_run(run_id).tags[names.TAG_VERIFIER_DIGEST]
    # The first champion's evidence is made up: it is there to be measured again.
    bench(store, [first.model_id], root / real_project.VERIFIER, verifier_digest=verifier_digest)
    options = ("--policy", "policy.yaml")
    real_project.done(root, "promote", f"run:{run_id}@{first.epoch}", *options)

    said = real_project.done(root, "promote", f"run:{run_id}@{last.epoch}", *options, "--json")
    promotion = json.loads(said)
    assert (promotion["action"], promotion["to_version"]) == ("promoted", 2)
    gates = {gate["name"]: gate for gate in promotion["gates"]}
    assert gates["acceptance_length less the champion's"]["is_passed"]
    assert store.registry.aliases(real_project.MODEL) == {"champion": 2, "previous": 1}

    measured = read_bench_result(store, promotion["bench_run_id"])
    assert {drafter.digest for drafter in measured.spec.drafters} == {first.digest, last.digest}
    for row in measured.pooled():
        assert row.num_prompts == real_project.NUM_PROMPTS
        assert row.lossless is not None
        assert not row.lossless.is_broken
    lengths = {row.digest: row.acceptance_length for row in measured.pooled()}
    assert lengths[last.digest].value > 1.05
    decision = DecisionLog(root / "mlruns").read()[-1]
    assert (decision.action, decision.bench_run_id) == ("promoted", promotion["bench_run_id"])

    export = ("export", f"models:/{real_project.MODEL}@champion", "--out", "served")
    exported = json.loads(real_project.done(root, *export, "--format", "speculators", "--json"))
    assert exported["loaded"]["num_drafts"] > 0
    assert Drafter.load(root / "served").format == "speculators"
    assert exported["digest"]["root"] == drafter_digest(root / "served").root
