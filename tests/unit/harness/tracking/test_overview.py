"""What the runs table and the pages of runs and versions say at once."""

import pytest
from fakes.memory_store import MemoryStore
from fakes.replays import answer_row, replay_answers, replay_result
from fakes.trained import bench, train

from harness.config.policy import Policy
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.overview import describe_replay, describe_training
from harness.tracking.promotion import promote


def description(store: MemoryStore, run_id: str) -> str:
    return plain(store.get_run(run_id).tags[names.TAG_DESCRIPTION])


def plain(text: str) -> str:
    """Without the room between columns."""
    return text.replace("&emsp;", "")


def test_a_training_shows_what_the_bench_measured_of_its_fastest_checkpoint(
    store: MemoryStore, settings: Settings
) -> None:
    run_id, models = train(store, settings)
    bench_id = bench(store, models, settings.root_dir / "verifier")
    found = store.get_run(run_id)
    assert found.metrics[names.METRIC_ACCEPTANCE_LENGTH] == pytest.approx(1.6)
    assert found.tags[names.TAG_BENCH_RUN] == bench_id
    text = description(store, run_id)
    assert f"[bench tiny #1](#/runs/{bench_id})" in text
    assert "| epoch-0 | 3 | 1 | 1.60 [1.55, 1.65] | 1.20 [1.15, 1.25] |" in text
    assert "| 1 | 20 | 2.000 |" in text, "and what validation said of each"


def test_a_bench_shows_the_settings_of_its_best_drafter(
    store: MemoryStore, settings: Settings
) -> None:
    parent = {names.TAG_FINETUNE_PARENT: "run:" + "a" * 32}
    run_id, models = train(store, settings, **parent)
    bench_id = bench(store, models, settings.root_dir / "verifier", flags=("the baseline drifted",))
    found = store.get_run(bench_id)
    assert (found.params["head_dim"], found.params["lr"]) == ("8", "0.001")
    assert found.metrics["hp/lr"] == pytest.approx(0.001)
    assert found.tags[names.TAG_FINETUNE_PARENT] == parent[names.TAG_FINETUNE_PARENT]
    text = description(store, bench_id)
    assert "epoch-1, K = 3, 1 at once: the baseline drifted" in text
    assert f"(#/runs/{run_id})" in text


def test_a_training_says_what_validation_found_and_from_where_it_was_finetuned(
    store: MemoryStore, settings: Settings
) -> None:
    parent_id = "a" * 32
    tags = {
        names.TAG_FINETUNE_PARENT: f"run:{parent_id}@3",
        names.TAG_FINETUNE_PARENT_RUN: parent_id,
    }
    run_id, _ = train(store, settings, **tags)
    text = plain(describe_training(store.get_run(run_id), store.checkpoints(run_id)))
    assert text.splitlines()[2] == "| epoch | step | loss | weights |", "no column of nothing"
    assert "| 0 | 10 | 3.000 |" in text
    assert f"Finetuned from [run:aaaaaaaa@3](#/runs/{parent_id})." in text


def test_a_replay_says_that_it_was_not_served(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings)
    checkpoint = store.get_checkpoint(models[0])
    result = replay_result(replay_answers([answer_row([3, 3, 5, 3]), answer_row([5, 3, 3])]))
    text = describe_replay(result, {models[0]: checkpoint})
    assert "not served" in text
    assert f"[epoch-0](#/runs/{run_id})" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + result.k * len(result.drafters)


def test_a_version_says_where_it_came_from_and_why_it_was_promoted(
    store: MemoryStore, settings: Settings
) -> None:
    run_id, models = train(store, settings)
    bench_id = bench(store, models, settings.root_dir / "verifier")
    policy = Policy(min_acceptance_length=1.3)
    for epoch in (0, 1):
        promote([f"run:{run_id}@{epoch}"], "tiny", policy, settings, store)
    first, second = (plain(version.description) for version in store.registry.versions("tiny"))
    assert first.startswith("Promoted 20")
    assert "in place of" not in first
    assert "in place of version 1" in second
    assert "| verifier |" in second
    assert "| parent | none: from scratch | - |" in second
    assert "| corpus | corpus | abababababab |" in second
    assert f"| training | [train tiny #1](#/runs/{run_id}) | - |" in second
    assert f"| checkpoint | epoch 1, step 20 | {store.get_checkpoint(models[1]).digest[:12]} |" in (
        second
    )
    assert "| acceptance_length | low end >= 1.3 | 1.800 [1.750, 1.850] | yes |" in second
    assert f"Evidence: [bench](#/runs/{bench_id})" in second
