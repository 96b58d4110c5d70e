"""Two checkpoints of one training, measured together, apart, unlike one another, or not at all."""

from pathlib import Path

import pytest
from fakes.measurements import DRAFTED, make_cell, make_result, make_spec
from fakes.memory_store import MemoryStore
from fakes.trained import train

from eval.result import BenchResult
from eval.spec import DrafterSpec
from harness.compare.comparison import compare
from harness.compare.page import render_report
from harness.errors import CheckError, ConfigError
from harness.settings import Settings
from harness.tracking import measurements, names

BASELINE = make_cell("baseline", "before", tpot_s=0.1)
FASTER = make_cell("b", "k3-0", tpot_s=0.032, histogram=(3, 3, 3, 1))


def measure(
    store: MemoryStore, model_ids: list[str], arms: str = "ab", **environment: str
) -> BenchResult:
    """A finished bench: a decodes at 40 ms, b at 32 ms, the verifier alone at 100 ms."""
    models = [store.get_checkpoint(model_id) for model_id in model_ids]
    spec = make_spec(
        drafters=tuple(
            DrafterSpec(name=arm, path=model.path, digest=model.digest)
            for arm, model in zip(arms, models, strict=True)
        )
    )
    cells = [BASELINE, *(cell for arm, cell in zip("ab", (DRAFTED, FASTER), strict=True)
                         if arm in arms)]  # fmt: skip
    result = make_result(cells, spec=spec).model_copy(update={"environment": environment})
    with store.start_run(names.KIND_BENCH, "bench tiny", experiment=names.EXPERIMENT_BENCH) as run:
        ids = dict(zip(arms, model_ids, strict=True))
        measurements.log_bench_result(run, store, result, ids)
    return result


def test_measured_together_one_is_faster(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings)
    measure(store, models)
    found = compare([f"run:{run_id}@0", f"run:{run_id}@1"], settings, store)
    assert [one.label for one in found.subjects] == [
        "train tiny #1 epoch 0", "train tiny #1 epoch 1",
    ]  # fmt: skip
    (pair,) = found.headline()
    assert pair.is_together
    assert pair.speed == (
        "train tiny #1 epoch 1 is faster than train tiny #1 epoch 0 by 25.0 % [25.0, 25.0]"
    )
    page = render_report(found)
    assert "is faster than" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_bench_brings_all_its_drafters(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings)
    measure(store, models)
    (bench,) = store.find_runs(kind=names.KIND_BENCH)
    found = compare([f"run:{bench.run_id}"], settings, store)
    assert [one.run_id for one in found.subjects] == [run_id, run_id]


def test_unlike_measurements_are_refused_by_name(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings)
    measure(store, models[:1], "a", dtype="float32")
    measure(store, models[1:], "b", dtype="bfloat16")
    references = [f"run:{run_id}@0", f"run:{run_id}@1"]
    with pytest.raises(CheckError, match=r"dtype: float32 .* bfloat16"):
        compare(references, settings, store)
    found = compare(references, settings, store, is_forced=True)
    assert [one.what for one in found.unlike] == ["dtype"]
    assert not found.headline()[0].is_together
    assert "Unlike dtype" in render_report(found)


def test_another_k_is_refused(store: MemoryStore, settings: Settings, tmp_path: Path) -> None:
    run_id, models = train(store, settings)
    result = measure(store, models[:1], "a")
    rows = tuple(row.model_copy(update={"k": 5}) for row in result.results)
    samples = tuple(
        sample.model_copy(update={"k": 5} if sample.k else {}) for sample in result.samples
    )
    spec = result.spec.model_copy(
        update={"drafters": (DrafterSpec(name="a", path=Path("x"), digest="e" * 64),)}
    )
    other = result.model_copy(update={"results": rows, "samples": samples, "spec": spec})
    other.write(tmp_path / "other.json")
    references = [f"run:{run_id}@0", str(tmp_path / "other.json")]
    with pytest.raises(CheckError, match=r"K and requests at once: K = 3.*K = 5"):
        compare(references, settings, store)
    (pair,) = compare(references, settings, store, is_forced=True).headline()
    assert (pair.k, pair.second_k) == (3, 5)


def test_without_a_bench_the_trainings_are_compared(store: MemoryStore, settings: Settings) -> None:
    first, _ = train(store, settings)
    second, _ = train(store, settings)
    record = store.read_text(second, names.ARTIFACT_PROVENANCE) or ""
    changed = record.replace('"commit":"c0ffee"', '"commit":"decaf"')
    store.attach_run(second).log_text(names.ARTIFACT_PROVENANCE, changed)
    found = compare([f"run:{first}", f"run:{second}"], settings, store)
    assert (found.pairs, found.figures) == ((), ())
    assert [one.key for one in found.provenance] == ["code.commit"]
    assert found.subjects[0].validation == {names.METRIC_VAL_LOSS: 2.0}
    assert "not measured" in render_report(found)


def test_against_the_champion(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings)
    measure(store, models)
    with pytest.raises(ConfigError, match="one champion"):
        compare([f"run:{run_id}@1"], settings, store, against="champion")
    store.registry.create_version("tiny", store.get_checkpoint(models[0]), {})
    store.registry.set_alias("tiny", "champion", 1)
    found = compare([f"run:{run_id}@1"], settings, store, against="champion")
    assert found.headline()[0].speed is not None
    assert found.subjects[0].reference == "models:/tiny@champion"


@pytest.mark.parametrize(
    ("reference", "says"),
    [("no.json", "cannot read"), ("run:" + "f" * 32, "f" * 32), ("models:/no@champion", "'no'")],
)
def test_bad_references_are_named(
    store: MemoryStore, settings: Settings, reference: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        compare([reference, reference], settings, store)


def test_one_drafter_is_no_comparison(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings)
    measure(store, models)
    with pytest.raises(ConfigError, match="two drafters or more"):
        compare([f"run:{run_id}@1", f"run:{run_id}"], settings, store)
