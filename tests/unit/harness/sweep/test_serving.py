from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.bench_results import bench_result, bench_row, interval
from fakes.sweep_world import World, quality

from eval.counters import AcceptanceCounts
from eval.errors import ServerStartError
from eval.result import BenchResult, PromptSample
from harness.config.bench import BenchConfig
from harness.sweep.endings import Endings
from harness.sweep.records import TrialState
from harness.sweep.serving import Serving
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import FINAL, SURVIVORS, rank, served_rank
from harness.sweep.view import best_trial, conclusion
from harness.tracking import names


class FakeMeasured:
    def __init__(self, run_id: str, result: BenchResult) -> None:
        self.run_id, self.result = run_id, result


class Bench:
    """A bench that gives each drafter its trial's quality, drafts by prompt."""

    def __init__(self, world: World, study: SweepStudy, *, is_even: bool = False) -> None:
        self.world, self.study, self.is_even = world, study, is_even
        self.calls: list[BenchConfig] = []
        self.broken: set[str] = set()

    def __call__(self, config: BenchConfig) -> FakeMeasured:
        self.calls.append(config)
        if self.broken & set(config.drafters):
            raise ServerStartError("the server did not start", "look at its log")
        run = self.world.store.start_run(
            names.KIND_BENCH, config.name or "b", experiment=names.EXPERIMENT_BENCH
        )
        rows, samples = [], []
        (k,) = config.k
        for reference in config.drafters:
            length = 1.5 if self.is_even else self.quality_of(reference)
            rows.append(
                bench_row(reference, None, k, step_cost=1.6, acceptance_length=interval(length))
            )
            samples += [sample(reference, k, prompt, length) for prompt in range(8)]
        paths = {reference: Path("/d") for reference in config.drafters}
        result = bench_result(tuple(rows), paths)
        return FakeMeasured(run.run_id, result.model_copy(update={"samples": tuple(samples)}))

    def quality_of(self, reference: str) -> float:
        for trial in self.study.trials():
            if reference == f"run:{trial.facts.get('run_id')}":
                return quality(self.study.space.resolve(trial.params).train)
        return 1.0


def sample(arm: str, k: int, prompt: int, length: float) -> PromptSample:
    drafts = 100 + prompt
    accepted = round(drafts * (length - 1 + prompt / 1000))
    return PromptSample(
        arm=arm, k=k, concurrency=1, session="s", prompt_id=f"p{prompt}", category="all",
        num_turns=1, num_prompt_tokens=1, num_tokens=9, num_decode_tokens=8, decode_s=1.0,
        ttft_s=0.1, latency_s=1.1,
        acceptance=AcceptanceCounts(
            num_drafts=drafts, num_draft_tokens=k * drafts, num_accepted=accepted,
            accepted_at=(accepted, 0, 0),
        ),
    )  # fmt: skip


@pytest.fixture
def searched(tmp_path: Path) -> tuple[World, SweepStudy]:
    world = World(tmp_path, n_trials=6, num_served=2, baselines=[{"lr": 2e-3}])
    _, study, _ = world.run()
    return world, study


MakeServing = Callable[..., Serving]


def make_serving(world: World, study: SweepStudy, bench: Bench) -> Serving:
    parent = next(run.run_id for run in world.store.runs.values() if run.kind == names.KIND_SWEEP)
    return Serving(study, BenchConfig(), bench, world.store, parent)  # type: ignore[arg-type]


def test_survivors_and_the_base_are_measured_in_one_call(
    searched: tuple[World, SweepStudy],
) -> None:
    world, study = searched
    bench = Bench(world, study)
    make_serving(world, study, bench).serve()
    best = [t for t in rank(world.config, study.trials()) if t.number][:2]
    expected = {f"run:{t.facts['run_id']}" for t in (*best, study.trial(0))}
    assert [set(call.drafters) for call in bench.calls] == [expected]
    assert {t.number for t in study.trials() if t.served} == {0, *(t.number for t in best)}
    assert Endings(study).cost_of(best[0]) == 1.6
    benches = [r for r in world.store.runs.values() if r.kind == names.KIND_BENCH]
    assert [run.tags[names.TAG_SWEEP_ID] for run in benches] == [study.sweep_id]


def test_the_last_measurement_is_precise_and_beside_the_champion(
    searched: tuple[World, SweepStudy],
) -> None:
    world, study = searched
    study.config = world.config.model_copy(update={"final_precision": 0.02, "champion": "m"})
    bench = Bench(world, study)
    world.store.registry.aliases = lambda name: {"champion": 1}  # type: ignore[method-assign]
    make_serving(world, study, bench).serve()
    first, last = bench.calls
    assert first.precision is None
    assert last.precision == 0.02
    assert "models:/m@champion" in last.drafters
    assert "models:/m@champion" not in first.drafters
    assert len(last.drafters) == 3


def test_what_was_measured_last_ranks_before_what_was_not_measured_beside_it(
    searched: tuple[World, SweepStudy],
) -> None:
    world, study = searched
    for number, stage, length in ((1, SURVIVORS, 1.9), (2, FINAL, 1.5), (0, FINAL, 1.4)):
        study.note_served(number, {"stage": stage, "acceptance_length": length})
    assert [t.number for t in served_rank(world.config, study.trials())] == [2, 0, 1]


def test_one_that_is_not_served_does_not_spoil_the_others(
    searched: tuple[World, SweepStudy],
) -> None:
    world, study = searched
    bench = Bench(world, study)
    worst = study.trial(1)
    bench.broken = {f"run:{worst.facts['run_id']}"}
    make_serving(world, study, bench).serve()
    broken = study.trial(worst.number).served
    assert broken["reason"] == "server died"
    served = [t.number for t in study.trials() if "decode_speedup" in t.served]
    assert len(served) == 2
    assert worst.number not in served


def test_the_claim_is_an_interval_that_excludes_zero_or_no_claim(
    searched: tuple[World, SweepStudy],
) -> None:
    world, study = searched
    make_serving(world, study, Bench(world, study)).serve()
    best = best_trial(study)
    assert best is not None
    assert f"trial {best.number} accepts" in conclusion(study)
    assert "more than the base [0." in conclusion(study)
    even = Bench(world, study, is_even=True)
    make_serving(world, study, even).serve()
    assert "cannot be told apart" in conclusion(study)


def test_a_trial_of_another_k_is_held_against_the_base(tmp_path: Path) -> None:
    space = {"k": {"type": "int", "low": 2, "high": 3}}
    world = World(tmp_path, space=space, k=3, n_trials=2, baselines=[{"k": 2}])
    _, study, _ = world.run()
    bench = Bench(world, study)
    make_serving(world, study, bench).serve()
    assert [call.k for call in bench.calls] == [(2,), (3,)]
    assert conclusion(study).startswith("the acceptance of trial 1 and the base cannot")


def test_costs_are_measured_once_an_architecture_and_a_failure_fails_the_trial(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, objectives=[{}], n_trials=2)
    _, study, coordinator = world.run()
    bench = Bench(world, study)
    serving = make_serving(world, study, bench)
    (waiting,) = coordinator.endings.lacking_costs(study.trials())
    bench.broken = {f"run:{waiting.facts['run_id']}"}
    serving.measure_costs([waiting])
    failed = study.trial(waiting.number)
    assert failed.state is TrialState.FAIL
    assert failed.facts["reason"] == "server died"
    bench.broken = set()
    coordinator.search()
    serving.measure_costs(coordinator.endings.lacking_costs(study.trials()))
    coordinator.endings.settle_all()
    assert study.trial(1).state is TrialState.COMPLETE
    assert bench.calls[-1].num_prompts == world.config.num_cost_prompts
