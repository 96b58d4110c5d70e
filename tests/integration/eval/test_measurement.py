"""Real vLLM, a trained drafter: counts that repeat, changes in place, and the whole command."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from fakes.learned import Learned

from eval.cells import Cell, CellKey
from eval.counters import count_answers
from eval.engine import Engine
from eval.errors import ServerStartError, SwapRefusedError
from eval.hotswap import swap_drafter
from eval.machinequeue import MachineQueue
from eval.plan import BASELINE_ARM, Arm, build_arms
from eval.profiling import PROFILE_NAME, Profile, profile_steps
from eval.result import BenchResult
from eval.spec import BenchSpec, DrafterSpec

from .conftest import DRAFTER

PUBLISHED_ACCEPTANCE_LENGTH = 2.03


def measure(engine: Engine, arm: Arm, spec: BenchSpec) -> Cell:
    key = CellKey(session="s", arm=arm.name, k=arm.k, concurrency=1, block=0)
    return engine.measure(key, arm, spec.prompts)


def per_request(cell: Cell) -> list[object]:
    return [(answer.token_ids, answer.speculation) for answer in cell.answers]


def test_changing_a_to_b_and_back_gives_bit_equal_counts(engine: Engine, spec: BenchSpec) -> None:
    a, b = build_arms(spec, 3)
    first, other, again = (measure(engine, arm, spec) for arm in (a, b, a))
    assert per_request(first) == per_request(again)
    assert first.counters == again.counters
    assert first.counters.acceptance != other.counters.acceptance
    assert [answer.token_ids for answer in first.answers] == [
        answer.token_ids for answer in other.answers
    ]
    assert len(engine.records) == 1
    assert all(swap.refused is None and "d2t" in swap.read_back for swap in engine.swaps)


def test_counts_are_consistent_and_ours_are_the_servers(engine: Engine, spec: BenchSpec) -> None:
    cell = measure(engine, build_arms(spec, 3)[0], spec)
    counts = cell.counters.acceptance
    counts.require_consistent()
    assert cell.counters.agrees_with(count_answers(cell.answers))
    assert counts.acceptance_length == pytest.approx(1 + sum(counts.acceptance_rate_at))


def test_a_drafter_that_cannot_be_taken_in_place_is_refused_and_the_engine_serves_on(
    engine: Engine,
    spec: BenchSpec,
    drafter_a: DrafterSpec,
    write_variant,
) -> None:
    arm = build_arms(spec, 3)[0]
    before = measure(engine, arm, spec)
    server = engine.serve(arm)
    broken = write_variant("nan", "norm.weight", float("nan"))
    with pytest.raises(SwapRefusedError, match="not finite"):
        swap_drafter(server, drafter_a, broken)
    assert per_request(measure(engine, arm, spec)) == per_request(before)
    assert len(engine.records) == 1


def test_a_profile_tells_the_parts_of_a_step_and_leaves_the_machine_to_others(
    spec: BenchSpec, tmp_path: Path
) -> None:
    few = {"drafters": spec.drafters[:1], "queue_path": tmp_path / "queue"}
    found = profile_steps(spec.model_copy(update=few), tmp_path, lambda text, done, total: None)
    plain, drafted = found.steps
    assert (plain.num_tokens, drafted.num_tokens) == (1, 4)
    assert "draft" in drafted.cpu_ms.keys() - plain.cpu_ms.keys()
    for step in found.steps:
        assert step.num_steps > 0
        assert 0 < step.cpu_ms["verify"] < step.cpu_ms["step"] < step.step_ms
    assert found == Profile.model_validate_json((tmp_path / PROFILE_NAME).read_bytes())
    others = MachineQueue(tmp_path / "queue")
    others.enter()
    assert others.waited_s == 0
    others.leave()


@pytest.mark.parametrize("victim", ["VLLM::Worker", "VLLM::EngineCore"])
def test_a_vllm_process_killed_in_the_middle_is_reported_and_nothing_is_left(
    spec: BenchSpec, tmp_path: Path, victim: str
) -> None:
    alone = Engine("killed", spec, tmp_path)
    server = alone.serve(BASELINE_ARM)
    family = psutil.Process(server.pid).children(recursive=True)
    (target,) = [process for process in family if process.name().startswith(victim)]
    killer = threading.Timer(0.3, target.kill)
    killer.start()
    try:
        with pytest.raises(ServerStartError, match="went away"):
            alone.ask(BASELINE_ARM, spec.prompts * 8, 1)
    finally:
        killer.join()
        alone.close()
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_the_command_measures_a_trained_drafter(learned: Learned, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    asked = [{"id": p.id, "category": p.category, "turns": p.turns} for p in learned.prompts]
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in asked))
    command = [
        *(sys.executable, "-m", "harness", "bench", "--k", "3", "--json"),
        *("--drafter", str(learned.drafter), "--verifier", str(learned.verifier)),
        *("--prompts", str(prompts), "--set", f"max_tokens={min(48, learned.max_model_len // 4)}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (row,) = [row for row in document["results"] if row["category"] == "all"]
    length = row["acceptance_length"]
    if learned.drafter == DRAFTER:
        assert length["low"] <= PUBLISHED_ACCEPTANCE_LENGTH <= length["high"]
    assert length["value"] == pytest.approx(1 + sum(row["acceptance_rate_at"]))
    assert all(
        rate >= floor
        for rate, floor in zip(row["acceptance_rate_at"], (0.3, 0.1, 0.03), strict=True)
    )
    assert row["decode_speedup"]["low"] < row["decode_speedup"]["value"]
    assert row["lossless"]["num_equal"] == row["lossless"]["num_compared"] == len(asked)
    result = BenchResult.model_validate_json(done.stdout)
    assert result.best.drafter == str(learned.drafter)
    assert (tmp_path / "mlruns" / "mlflow.db").is_file()
