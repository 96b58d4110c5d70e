import fcntl
import json
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from fakes.sweep_world import (
    BASE,
    Crash,
    FakeWorker,
    World,
    fails,
    make_config,
    quality,
    trains,
    trains_in_halves,
)
from optuna.storages.journal import JournalFileBackend

from harness.drafter.provenance import code_digest
from harness.errors import ConfigError
from harness.sweep.endings import Endings
from harness.sweep.ledger import Ledger
from harness.sweep.ports import STOP_PATIENCE_S, Pause
from harness.sweep.records import Event, Failed, Reason, Stopped, Trained, TrialSpec, TrialState
from harness.sweep.study import SweepStudy
from harness.sweep.verdicts import MOST_LOSSES, count_failures, front, rank, retry_origin
from harness.tracking import names
from harness.tracking.records import RunStatus

HALVING = {"type": "successive_halving", "min_resource": 1, "reduction_factor": 2}


def require_accounted(world: World, study: SweepStudy, num_trials: int) -> None:
    """Every trial has ended once, has one run that counts, and no run is RUNNING."""
    trials = study.trials()
    assert [t.number for t in trials] == list(range(num_trials))
    assert all(t.is_finished for t in trials)
    trained = [t for t in trials if t.state in {TrialState.COMPLETE, TrialState.PRUNED}]
    own = {t.facts["run_id"] for t in trained if "duplicate_of" not in t.facts}
    assert len(own) == sum("duplicate_of" not in t.facts for t in trained)
    for trial in trials:
        if trial.state is TrialState.COMPLETE:
            assert trial.values == (quality(study.space.resolve(trial.params).train),)
    running = [r for r in world.store.runs.values() if r.status is RunStatus.RUNNING]
    assert not running


def test_a_sweep_runs_the_base_first_then_its_budget(tmp_path: Path) -> None:
    world = World(tmp_path, baselines=[{"lr": 2e-3}])
    pause, study, _ = world.run()
    assert pause is Pause.DONE
    require_accounted(world, study, 6)
    first, second, *_ = study.trials()
    assert first.params == {"lr": BASE.lr, "ttt_steps": BASE.ttt_steps}
    assert first.origin == "base"
    assert second.params == {"lr": 2e-3, "ttt_steps": BASE.ttt_steps}
    assert {spec.train.replay_k for spec in world.specs} == {world.config.k}


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe"])
def test_the_same_seed_gives_the_same_proposals(tmp_path: Path, sampler: str) -> None:
    def points(folder: Path, seed: int) -> list[dict[str, object]]:
        folder.mkdir()
        chosen = {"type": sampler, "seed": seed, "num_startup": 2}
        _, study, _ = World(folder, sampler=chosen, n_trials=7, pruner=HALVING).run()
        return [trial.params for trial in study.trials()]

    one, two = points(tmp_path / "a", 1), points(tmp_path / "b", 1)
    assert one == two
    assert one != points(tmp_path / "c", 2)


@pytest.mark.parametrize(("stride", "is_torn"), [(1, False), (5, True)], ids=["before", "amid"])
def test_a_crash_at_any_write_accounts_for_each_trial_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int, is_torn: bool
) -> None:
    settings = {"n_trials": 3, "pruner": HALVING, "baselines": [{"lr": BASE.lr}]}
    for name in ("acquire", "release"):  # nobody else is there, and it is half of the time
        monkeypatch.setattr(f"harness.sweep.journal._ProcessLock.{name}", lambda _: True)
    _, whole, _ = World(tmp_path, **settings).run()
    expected = [trial.params for trial in whole.trials()]
    append = JournalFileBackend.append_logs
    num_crashes = 0
    for crash_at in count(1, stride):
        (tmp_path / f"{crash_at}").mkdir()
        world = World(tmp_path / f"{crash_at}", **settings)
        counter = count(1)

        def dies(
            self: JournalFileBackend,
            logs: list[dict[str, object]],
            counter: Iterator[int] = counter,
            crash_at: int = crash_at,
            world: World = world,
        ) -> None:
            if next(counter) == crash_at:
                if is_torn:
                    with (world.folder / "journal.log").open("ab") as stream:
                        stream.write(json.dumps(logs[0]).encode()[:-3])
                raise Crash
            append(self, logs)

        monkeypatch.setattr(JournalFileBackend, "append_logs", dies)
        try:
            world.run()
            break
        except Crash:
            num_crashes += 1
        monkeypatch.setattr(JournalFileBackend, "append_logs", append)
        _, study, _ = world.run()
        require_accounted(world, study, 3)
        # A verdict that was being made may come a rung later: Optuna writes that it judged first.
        assert [trial.params for trial in study.trials()] == expected
        assert max(world.launches.values()) <= 2
    assert num_crashes > 40 / stride


def test_a_second_sweep_of_the_name_does_nothing_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run()
    launches = world.launches.copy()
    pause, study, _ = world.run()
    assert pause is Pause.DONE
    assert world.launches == launches
    assert len([r for r in world.store.runs.values() if r.kind == names.KIND_SWEEP]) == 1
    require_accounted(world, study, 6)


def test_a_changed_space_is_refused_with_the_difference(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run()
    axes = {"lr": {"type": "float", "low": 1e-4, "high": 9e-3, "log": True}}
    world.config = make_config(space={**axes, "ttt_steps": {"type": "int", "low": 1, "high": 4}})
    with pytest.raises(ConfigError, match=r"space\.lr\.high: 0\.003 -> 0\.009"):
        world.open_study()


def test_a_larger_budget_goes_on_with_the_sweep(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=3)
    world.run()
    world.config = make_config(n_trials=5)
    _, study, _ = world.run()
    require_accounted(world, study, 5)
    assert set(world.launches.values()) == {1}


def test_duplicates_take_the_finished_trials_value(tmp_path: Path) -> None:
    space = {"ttt_steps": {"type": "int", "low": 2, "high": 3}}
    world = World(tmp_path, space=space, n_trials=8)
    _, study, _ = world.run()
    require_accounted(world, study, 8)
    assert sum(world.launches.values()) == 2
    copies = [t for t in study.trials() if "duplicate_of" in t.facts]
    assert len(copies) == 6
    originals = {t.number: t for t in study.trials()}
    assert all(t.values == originals[t.facts["duplicate_of"]].values for t in copies)


def test_halving_gives_up_trials_that_are_behind(tmp_path: Path) -> None:
    world = World(tmp_path, pruner=HALVING, n_trials=10)
    _, study, _ = world.run()
    pruned = [t for t in study.trials() if t.state is TrialState.PRUNED]
    best = rank(world.config, study.trials())[0]
    assert pruned
    assert all(t.facts["pruned_at_epoch"] in {1, 2} for t in pruned)
    assert all(max(t.reports.values()) < (best.values or (0,))[0] for t in pruned)
    assert any(w.num_interrupts for w in world.workers)


def test_a_trial_that_is_behind_in_the_middle_of_an_epoch_is_given_up_there(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, trains_in_halves, pruner=HALVING, n_trials=10)
    _, study, _ = world.run()
    require_accounted(world, study, 10)
    ends = [t.facts["pruned_at_epoch"] for t in study.trials() if t.state is TrialState.PRUNED]
    assert 0.5 in ends
    assert set(ends) <= {0.5, 1, 2}, "rungs of 1, 2 and 4 halves"


def test_half_of_the_last_epoch_is_not_the_end(tmp_path: Path) -> None:
    world = World(tmp_path, trains_in_halves, pruner={**HALVING, "min_resource": 5}, n_trials=8)
    _, study, _ = world.run()
    ends = {t.facts["pruned_at_epoch"] for t in study.trials() if t.state is TrialState.PRUNED}
    assert ends == {2.5}


@pytest.mark.parametrize(("max_steps", "resource"), [(None, BASE.epochs), (10, 1)])
def test_a_trial_at_its_end_is_told_and_not_given_up(
    max_steps: int | None, resource: int, tmp_path: Path
) -> None:
    world = World(tmp_path, pruner={**HALVING, "min_resource": resource}, n_trials=8)
    world.base = BASE.model_copy(update={"max_steps": max_steps})
    _, study, _ = world.run()
    assert all(t.state is TrialState.COMPLETE for t in study.trials())


def test_wilcoxon_pairs_prompts_and_keeps_the_pooled_value(tmp_path: Path) -> None:
    world = World(tmp_path, pruner={"type": "wilcoxon", "min_prompts": 8}, n_trials=6)
    _, study, _ = world.run()
    pruned = [t for t in study.trials() if t.state is TrialState.PRUNED]
    assert pruned
    for trial in pruned:
        final = quality(study.space.resolve(trial.params).train)
        epoch = trial.facts["pruned_at_epoch"]
        assert trial.values == pytest.approx((final * epoch / 3,))


def test_a_killed_trial_goes_on_twice_and_then_fails(tmp_path: Path) -> None:
    def script(spec: TrialSpec) -> list[Event]:
        return [] if spec.number == 1 else trains(spec)

    world = World(tmp_path, script, n_trials=3)
    _, study, _ = world.run()
    assert world.launches == {0: 1, 1: 3, 2: 1}
    failed = study.trial(1)
    assert failed.state is TrialState.FAIL
    assert failed.facts["reason"] == "killed"
    attempts = [spec for spec in world.specs if spec.number == 1]
    assert [spec.attempt for spec in attempts] == [1, 2, 3]
    assert attempts[0].run_id is None
    assert attempts[1].run_id == attempts[2].run_id == failed.facts["run_id"]


def test_a_lost_host_is_no_fault_of_the_trial_until_it_loses_one_after_the_other(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, n_trials=1, max_retries=0, max_failures=1)
    world.num_losses = MOST_LOSSES
    pause, study, _ = world.run()
    assert pause is Pause.DONE
    require_accounted(world, study, 1)
    (trial,) = study.trials()
    assert trial.state is TrialState.COMPLETE
    assert trial.num_attempts == MOST_LOSSES + 1
    assert (trial.retry["count"], trial.retry["num_losses"]) == (0, MOST_LOSSES)
    assert count_failures([trial]) == 0
    assert len({spec.run_id for spec in world.specs[1:]}) == 1, "each went on with the same run"


def test_a_trial_left_on_another_host_is_waited_for_and_then_gone_on_with(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=1)
    launch = world.launch

    def launch_and_die(*arguments: object) -> FakeWorker:
        launch(*arguments)  # type: ignore[arg-type]
        raise Crash

    world.script, world.launch = lambda _: [], launch_and_die  # type: ignore[assignment, method-assign]
    with pytest.raises(Crash):
        world.run()
    (run,) = [r for r in world.store.runs.values() if r.kind == names.KIND_TRAIN]
    world.store.attach_run(run.run_id).set_tags({names.TAG_HOST: "another"})
    world.open_study().note(0, run_id=run.run_id)
    world.script, world.launch = trains, launch  # type: ignore[method-assign]
    began = world.now_s
    _, study, _ = world.run()
    require_accounted(world, study, 1)
    assert world.specs[-1].run_id == run.run_id
    assert world.now_s - began >= STOP_PATIENCE_S


def test_a_trial_that_takes_down_every_host_fails(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=1)
    world.num_losses = MOST_LOSSES + 1
    _, study, _ = world.run()
    (trial,) = study.trials()
    assert trial.state is TrialState.FAIL
    assert trial.facts["reason"] == Reason.LOST
    require_accounted(world, study, 1)


def test_a_sweep_that_is_launched_goes_on_with_its_own_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, n_trials=1)
    _, study, _ = world.run()
    ledger = Ledger(world.store, study)
    ledger.require_same_code()
    own = code_digest()
    monkeypatch.setattr("harness.sweep.ledger.code_digest", lambda: "d" * 64)
    with pytest.raises(ConfigError, match=f"begun by code {own}, this is {'d' * 64}"):
        ledger.require_same_code()


def test_trials_of_dead_coordinators_are_retried_at_most_twice(tmp_path: Path) -> None:
    class Dying(FakeWorker):
        def poll(self) -> int | None:
            raise Crash

    world = World(tmp_path, lambda _: [], n_trials=1)
    launch = world.launch

    def launch_and_die(*arguments: object) -> FakeWorker:
        launch(*arguments)  # type: ignore[arg-type]
        return Dying(0)

    world.launch = launch_and_die  # type: ignore[assignment, method-assign]
    for _ in range(3):
        with pytest.raises(Crash):
            world.run()
    _, study, _ = world.run()
    assert world.launches == {0: 3}
    assert study.trial(0).state is TrialState.FAIL
    require_accounted(world, study, 1)


@pytest.mark.parametrize("reason", [Reason.NAN, Reason.REFUSED, Reason.DISK, Reason.ERROR])
def test_what_would_fail_again_is_not_retried(tmp_path: Path, reason: Reason) -> None:
    world = World(tmp_path, fails(reason), n_trials=5, max_failures=2)
    pause, study, _ = world.run()
    assert pause is Pause.FAILURES
    assert world.launches == {0: 1, 1: 1}
    assert {t.facts["reason"] for t in study.trials() if t.is_finished} == {reason.value}


@pytest.mark.parametrize("is_allowed", [True, False])
def test_out_of_memory_halves_the_sequence_where_allowed(tmp_path: Path, is_allowed: bool) -> None:
    def script(spec: TrialSpec) -> list[Event]:
        if spec.train.total_seq_len > 512:
            return [Failed(reason=Reason.OOM, detail="CUDA out of memory")]
        return trains(spec)

    world = World(tmp_path, script, n_trials=1, oom_halves_seq_len=is_allowed)
    _, study, _ = world.run()
    assert [s.train.total_seq_len for s in world.specs] == (
        [2048, 1024, 512] if is_allowed else [2048]
    )
    assert study.trial(0).state is (TrialState.COMPLETE if is_allowed else TrialState.FAIL)


def test_an_interrupt_stops_trials_and_the_next_call_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=3)

    def script(spec: TrialSpec) -> list[Event]:
        if spec.number == 1 and world.num_interrupts == 0 and spec.attempt == 1:
            world.num_interrupts = 1
            return [Stopped()]
        return trains(spec)

    world.script = script
    pause, study, _ = world.run()
    assert pause is Pause.STOPPED
    assert [t.stage for t in study.trials()] == ["trained", "stopped"]
    world.num_interrupts = 0
    _, study, _ = world.run()
    require_accounted(world, study, 3)
    assert study.trial(1).retry == {}


def test_points_that_make_no_training_fail_without_being_counted(tmp_path: Path) -> None:
    space = {
        "norm_before_fc": {"type": "categorical", "choices": [False, True]},
        "fc_norm": {"type": "categorical", "choices": [False, True]},
    }
    world = World(tmp_path, space=space, sampler={"type": "grid"}, n_trials=10, max_failures=1)
    world.base = BASE.model_copy(update={"norm_before_fc": False, "fc_norm": False})
    pause, study, _ = world.run()
    assert pause is Pause.DONE
    invalid = [t for t in study.trials() if t.facts.get("reason") == Reason.INVALID.value]
    assert [t.params for t in invalid] == [{"norm_before_fc": True, "fc_norm": True}]
    assert len(study.trials()) == 5  # the base, and the four points of the grid


def test_speedup_waits_for_the_cost_of_its_architecture(tmp_path: Path) -> None:
    world = World(tmp_path, objectives=[{}], n_trials=3)
    pause, study, coordinator = world.run()
    assert pause is Pause.COSTS
    assert [t.state for t in study.trials()] == [TrialState.RUNNING]
    endings = Endings(study)
    (waiting,) = endings.lacking_costs(study.trials())
    endings.set_cost(waiting, 1.6)
    coordinator.endings.settle_all()
    assert coordinator.search() is Pause.DONE
    for trial in study.trials():
        expected = quality(study.space.resolve(trial.params).train) / 1.6
        assert trial.values == pytest.approx((expected,))


@pytest.mark.parametrize("limits", [{"max_parameters": 2000}, {"max_train_s": 20.0}])
def test_limits_make_trials_infeasible(limits: dict[str, object], tmp_path: Path) -> None:
    world = World(tmp_path, limits=limits, n_trials=8)
    _, study, _ = world.run()
    trials = study.trials()
    assert {t.is_feasible for t in trials} == {True, False}
    assert all(t.is_feasible == (t.params["ttt_steps"] <= 2) for t in trials)
    assert all(t.is_feasible for t in rank(world.config, trials))


def test_several_objectives_make_a_front_without_pruning(tmp_path: Path) -> None:
    objectives = [{"metric": "acceptance_length"}, {"metric": "num_parameters"}]
    world = World(tmp_path, objectives=objectives, n_trials=8, baselines=[{"lr": 2e-3}])
    _, study, _ = world.run()
    trials = study.trials()
    assert all(t.state is TrialState.COMPLETE for t in trials)
    best = front(world.config, trials)
    assert best[0] == max(trials, key=lambda t: (t.values or (0.0,))[0])
    points = [t.values or () for t in trials]
    for trial in best:
        length, size = trial.values or (0.0, 0.0)
        assert not any(a > length and b < size for a, b in points)


def test_a_failed_trial_is_retried_on_top_of_the_budget(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=2)
    world.script = lambda spec: trains(spec) if spec.number else fails(Reason.NAN)(spec)
    _, study, _ = world.run()
    assert study.trial(0).state is TrialState.FAIL
    study.enqueue(study.trial(0).params, retry_origin(0))
    _, study, _ = world.run()
    again = study.trial(2)
    assert again.params == study.trial(0).params
    assert again.state is TrialState.COMPLETE
    assert count_failures(study.trials()) == 0
    assert len(study.trials()) == 3


def test_a_full_disk_ends_the_call_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, n_trials=3)
    append = JournalFileBackend.append_logs
    counter = count(1)

    def is_full(self: JournalFileBackend, logs: list[dict[str, object]]) -> None:
        if next(counter) > 25:
            with (world.folder / "journal.log").open("ab") as stream:
                stream.write(json.dumps(logs[0]).encode()[:7])
            raise OSError(28, "No space left on device")
        append(self, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", is_full)
    with pytest.raises(OSError, match="No space"):
        world.run()
    monkeypatch.setattr(JournalFileBackend, "append_logs", append)
    _, study, _ = world.run()
    require_accounted(world, study, 3)


def test_a_journal_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=1)
    with (tmp_path / "journal.log.flock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        timer = threading.Timer(0.3, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        began = time.monotonic()
        timer.start()
        _, study, _ = world.run()
        assert time.monotonic() - began >= 0.3
    require_accounted(world, study, 1)


@pytest.mark.parametrize("jump_s", [-7e6, 7e6])
def test_a_wall_clock_that_jumps_expires_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    world = World(tmp_path, n_trials=4, timeout_s=1e6)
    now = time.time

    def script(spec: TrialSpec) -> list[Event]:
        if spec.number == 1:
            monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        return trains(spec)

    world.script = script
    pause, study, _ = world.run()
    assert pause is Pause.DONE
    require_accounted(world, study, 4)
    assert set(world.launches.values()) == {1}


def test_a_store_that_is_away_stops_no_training(tmp_path: Path) -> None:
    from harness.errors import TrackingError

    world = World(tmp_path, n_trials=4)
    write = world.store.write_batch
    is_away = {"now": False}

    def away(run_id: str, **changes: object) -> None:
        if is_away["now"] and "hp" not in changes:
            raise TrackingError("no answer")
        write(run_id, **changes)  # type: ignore[arg-type]

    world.store.write_batch = away  # type: ignore[method-assign, assignment]

    def script(spec: TrialSpec) -> list[Event]:
        is_away["now"] = spec.number < 3
        return trains(spec)

    world.script = script
    _, study, _ = world.run()
    require_accounted(world, study, 4)
    tagged = [r for r in world.store.runs.values() if r.tags.get("trial.state") == "COMPLETE"]
    assert len(tagged) == 4


def test_events_cut_short_are_read_when_they_are_whole(tmp_path: Path) -> None:
    from harness.sweep.records import read_events

    path = tmp_path / "events-1.jsonl"
    whole = Stopped().model_dump_json().encode()
    path.write_bytes(whole + b"\n" + whole[:5])
    assert read_events(path) == [Stopped()]
    path.write_bytes(whole + b"\n" + whole + b"\n")
    assert read_events(path, 1) == [Stopped()]


def test_trained_is_what_the_script_says(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=1)
    _, study, _ = world.run()
    facts = study.trial(0).facts
    assert facts["num_parameters"] == 1000 * BASE.ttt_steps
    assert facts["path"] == "/drafters/0"
    assert isinstance(trains(world.specs[0])[-1], Trained)
