from pathlib import Path

import pytest
from fakes.bench_results import bench_result, bench_row, interval
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter

from eval.result import Interval
from harness.drafter.drafter import drafter_digest
from harness.tracking import names
from harness.tracking.waterfall import (
    CheckpointGap,
    Gap,
    Served,
    add_served,
    draw_gap,
    gap_steps,
    read_gap,
    write_gap,
)

FIGURES = {
    "estimate": 2.82,
    "domain_all": Interval(value=2.59, low=2.5, high=2.7),
    "domain_walk": Interval(value=2.51),
    "prompts_all": Interval(value=2.18),
    "prompts_walk": Interval(value=2.01),
}


def entry(model_id: str = "m", **changes: object) -> CheckpointGap:
    facts = {"model_id": model_id, "epoch": 1, "k": 3, **FIGURES, **changes}
    return CheckpointGap.model_validate(facts)


def served(value: float, *, is_comparable: bool = True) -> Served:
    return Served(
        bench_run_id="b",
        length=interval(value),
        prompts="eval.jsonl",
        is_comparable=is_comparable,
    )


def differences(gap: CheckpointGap) -> dict[str, float]:
    return {step.name: round(step.difference, 6) for step in gap_steps(gap)}


def test_each_step_of_the_gap_has_a_name_and_its_difference() -> None:
    assert differences(entry(served=served(2.03))) == {
        "definition": -0.23,
        "walk in domain": -0.08,
        "domain": -0.41,
        "walk": -0.17,
        "serving": 0.02,
    }


def test_what_is_not_known_or_not_comparable_makes_no_step() -> None:
    assert list(differences(entry())) == ["definition", "walk in domain", "domain", "walk"]
    assert list(differences(entry(prompts_all=None, prompts_walk=None))) == [
        "definition",
        "walk in domain",
    ]
    other = entry(served=served(2.03, is_comparable=False))
    assert "serving" not in differences(other)
    assert differences(CheckpointGap(model_id="m", epoch=None, k=3)) == {}


def test_the_figure_names_stages_steps_and_checkpoint() -> None:
    page = draw_gap(entry(served=served(2.03))).to_html(include_plotlyjs=False)
    for text in ("trainer's estimate", "serving +0.02", "domain -0.41", "of epoch 1, K = 3"):
        assert text.replace("'", "\\u0027") in page or text in page, text


def start(tmp_path: Path) -> tuple[MemoryStore, str, str]:
    """A training with one checkpoint and its gap before anything is served."""
    store = MemoryStore(tmp_path)
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        path = write_tiny_drafter(tmp_path / "0")
        model_id = run.log_checkpoint("0", path, step=1, epoch=0, digest=drafter_digest(path))
        gap = Gap(prompts="eval.jsonl", prompts_digest="cd" * 32, max_tokens=64)
        write_gap(run, gap.put(entry(model_id)))
    return store, run.run_id, model_id


@pytest.mark.parametrize(
    ("k", "prompts_digest", "is_comparable"),
    [(3, "cd" * 32, True), (5, "cd" * 32, False), (3, "00" * 32, False)],
)
def test_a_bench_adds_what_was_served_and_says_if_it_compares(
    tmp_path: Path, k: int, prompts_digest: str, *, is_comparable: bool
) -> None:
    store, run_id, model_id = start(tmp_path)
    row = bench_row("d", None, k=k, acceptance_length=interval(2.03))
    result = bench_result((row,), {"d": Path("/d")})
    result = result.model_copy(update={"prompts_digest": prompts_digest})
    add_served(store, result, {"d": model_id}, "bench-run")
    found = read_gap(store, run_id)
    assert found is not None
    (checkpoint,) = found.checkpoints
    assert checkpoint.served is not None
    assert checkpoint.served.length.value == 2.03
    assert checkpoint.served.bench_run_id == "bench-run"
    assert checkpoint.served.is_comparable == is_comparable
    assert ("serving" in {step.name for step in checkpoint.steps}) == is_comparable
    assert "2.03" in (store.read_text(run_id, "gap.html") or "")


def test_a_training_without_a_gap_stays_without(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as run:
        path = write_tiny_drafter(tmp_path / "0")
        model_id = run.log_checkpoint("0", path, step=1, epoch=0, digest=drafter_digest(path))
    add_served(store, bench_result((bench_row("d", None),), {"d": path}), {"d": model_id}, "b")
    assert read_gap(store, run.run_id) is None


def test_a_later_entry_of_a_checkpoint_takes_the_place_of_the_first() -> None:
    gap = Gap(prompts=None, prompts_digest=None, max_tokens=None)
    gap = gap.put(entry("a")).put(entry("b")).put(entry("a", estimate=1.0))
    assert [one.model_id for one in gap.checkpoints] == ["b", "a"]
    found = gap.find("a")
    assert found is not None
    assert found.estimate == 1.0
