"""The whole of a promotion over a store in memory: real files, real checks, real log."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.bench_results import interval
from fakes.memory_store import MemoryStore
from fakes.tiny_models import write_tiny_drafter
from fakes.trained import bench, train
from pydantic import ValidationError

from eval.counters import AcceptanceCounts
from eval.parityresult import ParityReport, ParityRow
from eval.records import EngineRecord
from eval.result import Divergence, Interval, Lossless
from harness.config.policy import Policy
from harness.errors import ConfigError, TrackingError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.decisions import DecisionLog
from harness.tracking.promotion import Promotion, promote
from harness.tracking.records import RunStatus

POLICY = Policy(min_acceptance_length=1.3, min_decode_speedup=1.0, min_prompts=24)


@pytest.fixture
def run_id(store: MemoryStore, settings: Settings) -> str:
    return train(store, settings)[0]


@pytest.fixture
def models(store: MemoryStore, run_id: str) -> list[str]:
    return [checkpoint.model_id for checkpoint in store.checkpoints(run_id)]


def decide(
    store: MemoryStore, settings: Settings, *references: str, policy: Policy = POLICY
) -> Promotion:
    return promote(references, "tiny", policy, settings, store)


def failed(promotion: Promotion) -> dict[str, str]:
    return {gate.name: gate.found for gate in promotion.gates if not gate.is_passed}


def test_the_better_of_two_becomes_champion(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench_id = bench(store, models, settings.root_dir / "verifier")
    done = decide(store, settings, f"run:{run_id}@0", f"run:{run_id}@1")
    assert failed(done) == {}
    assert (done.action, done.reference, done.model_id) == (
        "promoted",
        f"run:{run_id}@1",
        models[1],
    )
    assert (done.from_version, done.to_version, done.bench_run_id) == (None, 1, bench_id)
    assert store.registry.aliases("tiny") == {"champion": 1}
    (version,) = store.registry.versions("tiny")
    assert version.tags["weights.digest"] == store.get_checkpoint(models[1]).digest
    assert float(version.tags["acceptance_length"]) == pytest.approx(1.8)


def test_the_decision_is_in_the_log_and_in_the_store(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier")
    decide(store, settings, f"run:{run_id}@1")
    begun, done = DecisionLog(settings.mlruns_dir).read()
    assert (begun.action, done.action) == ("promoting", "promoted")
    assert done.policy["min_acceptance_length"] == 1.3
    (run,) = store.find_runs(kind=names.KIND_PROMOTION)
    assert run.tags["decision.hash"] == done.hash
    assert store.read_text(run.run_id, names.ARTIFACT_DECISION) == done.model_dump_json(indent=2)


def test_the_old_champion_is_kept_as_previous(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier")
    decide(store, settings, f"run:{run_id}@0")
    decide(store, settings, f"run:{run_id}@1")
    assert store.registry.aliases("tiny") == {"champion": 2, "previous": 1}
    one, two = store.registry.versions("tiny")
    assert one.tags[names.TAG_STATE] == "superseded"
    assert two.tags[names.TAG_STATE] == "champion"


def test_promoting_the_champion_again_decides_nothing(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier")
    for _ in range(2):
        done = decide(store, settings, f"run:{run_id}@1")
    assert (done.action, done.from_version, done.to_version) == ("champion already", 1, 1)
    assert store.registry.aliases("tiny") == {"champion": 1}
    assert len(DecisionLog(settings.mlruns_dir).read()) == 2


def test_a_dry_run_changes_nothing(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier")
    reference = f"run:{run_id}@1"
    done = promote([reference], "tiny", POLICY, settings, store, is_dry_run=True)
    assert done.action == "would promote"
    assert store.registry.names() == ()
    assert not (settings.mlruns_dir / "decisions.jsonl").exists()


TIE = Divergence(
    prompt_id="p0", turn=0, position=3, expected=1, found=2, gap=0.001, is_near_tie=True
)


@pytest.mark.parametrize(
    ("changes", "gate", "found"),
    [
        ({"acceptance_length": interval(1.32)}, "acceptance_length", "1.320 [1.270, 1.370]"),
        ({"acceptance_length": None}, "acceptance_length", "not measured"),
        (
            {"acceptance_length": Interval(value=2.0)},
            "acceptance_length",
            "2.000 without an interval",
        ),
        ({"decode_speedup": interval(1.02)}, "decode_speedup", "1.020 [0.970, 1.070]"),
        ({"num_prompts": 23}, "num_prompts", "23"),
        ({"lossless": None}, "lossless", "not compared"),
        (
            {
                "lossless": Lossless(
                    num_compared=24,
                    num_equal=23,
                    divergences=(TIE.model_copy(update={"is_near_tie": False}),),
                )
            },
            "lossless",
            "23 of 24 answers equal",
        ),
    ],
)
def test_each_measured_gate_can_refuse(  # noqa: PLR0917 - fixtures and cases
    store: MemoryStore,
    settings: Settings,
    run_id: str,
    models: list[str],
    changes: dict[str, object],
    gate: str,
    found: str,
) -> None:
    bench(store, models, settings.root_dir / "verifier", **changes)
    done = decide(store, settings, f"run:{run_id}@1")
    assert done.action == "refused"
    assert failed(done) == {gate: found}
    assert store.registry.names() == ()
    assert DecisionLog(settings.mlruns_dir).read()[-1].action == "refused"


def test_a_near_tie_is_no_loss(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    lossless = Lossless(num_compared=24, num_equal=23, divergences=(TIE,))
    bench(store, models, settings.root_dir / "verifier", lossless=lossless)
    assert decide(store, settings, f"run:{run_id}@1").is_passed


def test_one_flipped_byte_refuses(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier")
    weights = store.get_checkpoint(models[1]).path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-5] ^= 1
    weights.write_bytes(raw)
    done = decide(store, settings, f"run:{run_id}@1")
    assert done.action == "refused"
    assert "model.safetensors" in failed(done)["weights"]


def test_an_unsound_drafter_is_refused(store: MemoryStore, settings: Settings) -> None:
    run_id, models = train(store, settings, {"draft_vocab_size": 17})
    bench(store, models, settings.root_dir / "verifier")
    done = decide(store, settings, f"run:{run_id}@1")
    assert list(failed(done)) == ["verify"]
    assert "error(s)" in failed(done)["verify"]


def test_a_drafter_whose_verifier_is_gone_is_refused(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "nowhere")
    assert list(failed(decide(store, settings, f"run:{run_id}@1"))) == ["verify"]


def test_old_evidence_is_refused(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench_id = bench(store, models, settings.root_dir / "verifier")
    for end_days_ago, is_passed in ((29, True), (31, False)):
        end_ms = int((time.time() - end_days_ago * 86_400) * 1000)
        store.runs[bench_id] = store.runs[bench_id].model_copy(update={"end_ms": end_ms})
        assert decide(store, settings, f"run:{run_id}@1").is_passed == is_passed


@pytest.mark.parametrize("key", [names.TAG_CODE_COMMIT, names.TAG_CORPUS_DIGEST])
def test_missing_provenance_is_refused(store: MemoryStore, settings: Settings, key: str) -> None:
    run_id, models = train(store, settings, **{key: ""})
    bench(store, models, settings.root_dir / "verifier")
    assert failed(decide(store, settings, f"run:{run_id}@1")) == {"provenance": f"missing: {key}"}


def test_gates_that_are_off_are_not_asked(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "nowhere", lossless=None, acceptance_length=None)
    policy = Policy(
        min_decode_speedup=1.0,
        require_lossless=False,
        require_verify_clean=False,
        require_provenance=False,
        max_evidence_age_days=None,
        rank_by="decode_speedup",
    )
    done = decide(store, settings, f"run:{run_id}@1", policy=policy)
    always = ["num_prompts", "decode_speedup", "verifier", "vLLM", "hardware", "weights"]
    assert [gate.name for gate in done.gates] == always
    assert done.action == "promoted"


ONE_ROW = {"device": "cpu", "dtype": "float32", "num_answers": 24, "num_answer_tokens": 480}


def parity(num_equal: int) -> ParityReport:
    row = ParityRow(
        drafter="epoch-1",
        k=3,
        concurrency=1,
        num_requests=24,
        num_equal=num_equal,
        served=AcceptanceCounts(),
        replayed=AcceptanceCounts(),
        served_low=None,
        served_high=None,
        is_exact=True,
    )
    return ParityReport(rows=(row,), states_s=None, replay_s=1.0, **ONE_ROW)


def engines(*versions: str) -> dict[str, object]:
    record = EngineRecord(name="e", arm="e", command=(), start_s=1.0, vllm_version="")
    return {"engines": tuple(record.model_copy(update={"vllm_version": v}) for v in versions)}


@pytest.mark.parametrize(
    ("policy", "result", "gate", "found"),
    [
        ({"require_parity": True}, {}, "parity", "not checked: harness bench --parity"),
        ({"require_parity": True}, {"parity": parity(23)}, "parity", "23 of 24 requests equal"),
        ({"require_parity": True}, {"parity": parity(24)}, None, "24 of 24 requests equal"),
        ({}, engines("0.32.0", "0.33.0"), "vLLM", "0.32.0, 0.33.0"),
        ({"vllm_version": "0.31.0"}, {}, "vLLM", "0.32.0"),
        ({"vllm_version": "0.32.0"}, {}, None, "0.32.0"),
        ({}, {"environment": {}}, "hardware", "unknown"),
        ({"hardware": "H200"}, {"environment": {"cpu": "x"}}, "hardware", "cpu x"),
        (
            {"hardware": "h200"},
            {"environment": {"cpu": "x", "gpus": "NVIDIA H200"}},
            None,
            "cpu x, gpus NVIDIA H200",
        ),
    ],
)
def test_how_it_was_measured_can_refuse(  # noqa: PLR0917 - fixtures and cases
    store: MemoryStore,
    settings: Settings,
    run_id: str,
    models: list[str],
    policy: dict[str, object],
    result: dict[str, object],
    gate: str | None,
    found: str,
) -> None:
    bench(store, models, settings.root_dir / "verifier", result_changes=result)
    done = decide(store, settings, f"run:{run_id}@1", policy=POLICY.model_copy(update=policy))
    assert failed(done) == ({gate: found} if gate else {})
    assert found in {gate.found for gate in done.gates}


@pytest.mark.parametrize("is_asked", [False, True])
def test_flags_of_the_bench_are_told_and_can_refuse(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str], is_asked: bool
) -> None:
    bench(store, models, settings.root_dir / "verifier", flags=("the baseline drifted",))
    policy = POLICY.model_copy(update={"require_unflagged": is_asked})
    done = decide(store, settings, f"run:{run_id}@1", policy=policy)
    assert done.flags == ("the baseline drifted",)
    expected = {"flags of the bench": "the baseline drifted"} if is_asked else {}
    assert failed(done) == expected


def test_a_bench_with_another_verifier_is_no_evidence(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier", verifier_digest="cd" * 32)
    with pytest.raises(ConfigError, match="ran another verifier: expected digest abab") as caught:
        decide(store, settings, f"run:{run_id}@1")
    assert "found cdcdcdcdcdcd" in caught.value.message
    bench_id = bench(store, models, settings.root_dir / "verifier")
    bench(store, models, settings.root_dir / "verifier", verifier_digest="cd" * 32)
    assert decide(store, settings, f"run:{run_id}@1").bench_run_id == bench_id


def test_changed_files_are_refused_before_anything_is_measured(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    def never(references: Sequence[str]) -> str:
        raise AssertionError(references)

    weights = store.get_checkpoint(models[1]).path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    done = promote([f"run:{run_id}@1"], "tiny", POLICY, settings, store, measure=never)
    assert done.action == "refused"
    assert "model.safetensors" in failed(done)["weights"]
    assert {g.found for g in done.gates if g.is_passed is None} == {"not measured yet"}
    assert DecisionLog(settings.mlruns_dir).read()[-1].bench_run_id is None


def test_a_measurement_is_repeated_when_asked_for(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier")

    def measure(references: Sequence[str]) -> str:
        return bench(store, models, settings.root_dir / "verifier", num_prompts=99)

    done = promote(
        [f"run:{run_id}@1"],
        "tiny",
        POLICY,
        settings,
        store,
        measure=measure,
        is_remeasuring=True,
    )
    assert done.gates[0].found == "99"


@pytest.mark.parametrize("gates", [{}, {"min_acceptance_gain": 0.0}, {"require_lossless": True}])
def test_a_policy_that_any_drafter_passes_is_refused(gates: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="any drafter would pass"):
        Policy.model_validate(gates)
    with pytest.raises(ValidationError, match="greater than 1"):
        Policy.model_validate({**gates, "min_acceptance_length": 1.0})


def test_without_a_bench_there_is_no_evidence(
    store: MemoryStore, settings: Settings, run_id: str
) -> None:
    with pytest.raises(ConfigError, match="no evidence") as caught:
        decide(store, settings, f"run:{run_id}@1")
    assert caught.value.hint == f"harness bench --drafter run:{run_id}@1"


def test_candidates_must_be_measured_together(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    for model_id in models:
        bench(store, [model_id], settings.root_dir / "verifier")
    with pytest.raises(ConfigError, match="together"):
        decide(store, settings, f"run:{run_id}@0", f"run:{run_id}@1")


def test_a_bench_that_failed_is_no_evidence(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench_id = bench(store, models, settings.root_dir / "verifier")
    store.write_status(bench_id, RunStatus.FAILED)
    with pytest.raises(ConfigError, match="no evidence"):
        decide(store, settings, f"run:{run_id}@1")


def test_a_bench_of_other_weights_is_no_evidence(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench(store, models, settings.root_dir / "verifier", digests=["ef" * 32, "fe" * 32])
    with pytest.raises(ConfigError, match="no result for the weights of epoch-1"):
        decide(store, settings, f"run:{run_id}@1")


def test_an_edited_result_is_refused(
    store: MemoryStore, settings: Settings, run_id: str, models: list[str]
) -> None:
    bench_id = bench(store, models, settings.root_dir / "verifier", num_prompts=7)
    key = (bench_id, names.ARTIFACT_BENCH_RESULT)
    store.artifacts[key] = store.artifacts[key].replace('"num_prompts": 7', '"num_prompts": 96')
    with pytest.raises(TrackingError, match="was changed after it was written"):
        decide(store, settings, f"run:{run_id}@1")


def test_a_folder_cannot_be_promoted(
    store: MemoryStore, settings: Settings, tmp_path: Path
) -> None:
    folder = write_tiny_drafter(tmp_path / "drafter")
    with pytest.raises(ConfigError, match="checkpoint of the store"):
        decide(store, settings, str(folder))


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a b", "m-1", ".hidden"])
def test_model_names_that_are_no_reference_are_refused(
    store: MemoryStore, settings: Settings, run_id: str, name: str
) -> None:
    with pytest.raises(ConfigError, match="model name"):
        promote([f"run:{run_id}"], name, POLICY, settings, store)
