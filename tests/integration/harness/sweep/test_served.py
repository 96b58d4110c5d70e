"""A sweep for decode speedup, its default objective, served by real vLLM."""

import json
import re

import pytest
import yaml
from fakes.tiny_corpus import prompt_words, write_running_verifier, write_tiny_corpus, write_words

from harness.settings import Settings
from harness.sweep.records import TrialState
from harness.tracking import names
from harness.tracking.measurements import read_bench_result
from harness.tracking.records import RunStatus
from harness.tracking.store import open_store

from .conftest import Sweep, write_project
from .test_sweep import finish, require_accounted, runs_of

pytestmark = pytest.mark.timeout(580)
_NUM_PROMPTS = 6


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A verifier that vLLM serves, and the bench of its answers."""
    project = tmp_path_factory.mktemp("served")
    verifier = write_running_verifier(
        project / "verifier", hidden=128, heads=4, kv_heads=4, initializer_range=0.12
    )
    write_words(verifier)
    corpus = write_tiny_corpus(project / "corpus", verifier, num_distinct=_NUM_PROMPTS)
    prompts = [
        {"id": str(n), "category": "a", "turns": [prompt_words(n)]} for n in range(_NUM_PROMPTS)
    ]
    (project / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    bench = {
        "verifier": str(verifier),
        "prompts": str(project / "prompts.jsonl"),
        "max_tokens": 16,
        "ignore_eos": True,
        "num_warmup": 1,
    }
    (project / "bench.yaml").write_text(yaml.safe_dump(bench))
    return write_project(project, verifier, corpus, head_dim=64, draft_vocab_size=64)


def test_trials_are_predicted_then_the_best_is_served_beside_the_base(
    settings: Settings, start: Sweep
) -> None:
    options = {"bench": "bench.yaml", "objectives": [{}], "num_cost_prompts": 2, "num_served": 1}
    output = finish(start("speed", n_trials=2, fixed={"epochs": 4}, **options), wait_s=540)
    trials = require_accounted(settings, "speed", 2)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    store = open_store(settings)
    benches = [
        read_bench_result(store, run.run_id) for run in store.find_runs(kind=names.KIND_BENCH)
    ]
    assert [len(found.pooled()) for found in benches if found] == [2, 1], "both, after the costs"
    first, second = (trial.values for trial in trials)
    lengths = [trial.facts["acceptance_length"] for trial in trials]
    assert first is not None
    assert second is not None
    assert first[0] != lengths[0], "a speedup, not a length"
    assert first[0] / second[0] == pytest.approx(lengths[0] / lengths[1]), "at one cost of a step"
    for trial in trials:
        assert trial.served["stage"] == "survivors"
        assert 0 < trial.served["decode_speedup_low"] <= trial.served["decode_speedup_high"]
    assert re.search(
        r"speed of trial 1 and the base|trial 1 is (faster|slower) than the base", output
    )
    assert not any(run.status is RunStatus.RUNNING for run in runs_of(settings, "speed"))
