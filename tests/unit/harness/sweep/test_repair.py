import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.sweep_world import World

from harness.errors import ConfigError, TrackingError
from harness.sweep.causes import Causes, count_oom_kills
from harness.sweep.journal import mend
from harness.sweep.leases import Heartbeat, coordinator_lock
from harness.sweep.ports import Place
from harness.sweep.records import Reason
from harness.sweep.repair import repair
from harness.sweep.slots import find_slots
from harness.sweep.study import ATTR_PARENT_RUN
from harness.tracking import names
from harness.tracking.records import RunStatus


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path, n_trials=3)
    found.run()
    return found


def mended(world: World) -> tuple[str, ...]:
    place = Place(world.folder, world.settings, ())
    return repair(world.open_study(), world.store, place)


def test_a_sweep_in_order_needs_no_repair(world: World) -> None:
    assert mended(world) == ()


def test_a_trial_told_to_optuna_and_not_to_mlflow_is_told(world: World) -> None:
    run_id = world.open_study().trial(1).facts["run_id"]
    world.store.attach_run(run_id).set_tags({"trial.state": "RUNNING"})
    assert mended(world) == ("trial 1: COMPLETE, its run did not say so",)
    assert world.store.get_run(run_id).tags["trial.state"] == "COMPLETE"
    assert mended(world) == ()


def test_runs_of_dead_processes_are_closed(world: World) -> None:
    run_id = world.open_study().trial(1).facts["run_id"]
    world.store._update(run_id, status=RunStatus.RUNNING)
    assert mended(world) == (f"run {run_id}: closed, its process was gone",)
    assert world.store.get_run(run_id).status is RunStatus.KILLED


def test_a_run_that_the_study_never_heard_of_is_marked(world: World) -> None:
    study = world.open_study()
    tags = {names.TAG_SWEEP_ID: study.sweep_id, names.TAG_TRIAL: 7}
    run = world.store.start_run(names.KIND_TRAIN, "x", experiment="e", tags=tags)
    run.finish()
    assert mended(world) == (f"run {run.run_id}: the study has no trial 7, marked",)
    assert mended(world) == ()


def test_the_parent_is_found_by_the_studys_id(world: World) -> None:
    study = world.open_study()
    known = study.attr(ATTR_PARENT_RUN)
    study.set_attr(ATTR_PARENT_RUN, None)
    assert mended(world) == (f"run {known}: is the sweep's, the study did not know it",)
    assert world.open_study().attr(ATTR_PARENT_RUN) == known


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(b'{"a":1}\n{"b":')
    assert mend(path) == 5
    assert path.read_bytes() == b'{"a":1}\n'
    assert mend(path) == 0


def test_two_coordinators_of_one_sweep_are_one_too_many(tmp_path: Path) -> None:
    with (
        coordinator_lock(tmp_path / "s"),
        pytest.raises(ConfigError, match="coordinates the sweep 's'"),
        coordinator_lock(tmp_path / "s"),
    ):
        pass


@pytest.mark.parametrize("is_alive", [True, False])
def test_another_hosts_coordinator_is_told_by_its_counter_alone(
    tmp_path: Path, is_alive: bool
) -> None:
    world = World(tmp_path)
    study = world.open_study()
    owner = {"host": "elsewhere", "boot_id": "b", "pid": 1, "started": "1"}
    study.set_attr("harness.coordinator", {"owner": owner, "count": 1})

    def sleep(seconds: float) -> None:
        world.now_s += seconds
        if is_alive and world.now_s > 20:
            study.set_attr("harness.coordinator", {"owner": owner, "count": 2})

    heartbeat = Heartbeat(study, lambda: world.now_s, sleep)
    if is_alive:
        with pytest.raises(ConfigError, match="coordinator on elsewhere"):
            heartbeat.take_over()
    else:
        heartbeat.take_over()
        assert world.now_s >= 45


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), Reason.DISK),
        (
            ConfigError(
                "failed: [enforce fail at inline_container.cc:672] . unexpected pos 5 vs 3"
            ),
            Reason.DISK,
        ),
        (MemoryError(), Reason.OOM),
        (TrackingError("database or disk is full"), Reason.DISK),
        (TrackingError("no answer"), Reason.STORE),
        (ConfigError("diverged: the loss is nan"), Reason.NAN),
        (
            ConfigError("training 't' failed: torch.OutOfMemoryError: CUDA out of memory"),
            Reason.OOM,
        ),
        (ConfigError("training 't' failed: the worker was killed by SIGKILL"), Reason.KILLED),
        (ConfigError("something else"), Reason.ERROR),
    ],
)
def test_failures_have_a_reason(error: Exception, reason: Reason) -> None:
    assert Causes().classify(error) is reason


@pytest.mark.parametrize(("free", "reason"), [(1 << 10, Reason.DISK), (1 << 30, Reason.ERROR)])
def test_a_log_that_a_full_disk_cut_short_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, reason: Reason
) -> None:
    monkeypatch.setattr(
        "harness.sweep.causes.shutil.disk_usage", lambda _: SimpleNamespace(free=free)
    )
    assert Causes(tmp_path).classify(ConfigError("the worker exited with 1: File")) is reason


def test_a_kill_that_the_kernel_counted_was_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    causes = Causes()
    before = count_oom_kills()
    monkeypatch.setattr("harness.sweep.causes.count_oom_kills", lambda: before + 1)
    assert causes.of_exit(-9)[0] is Reason.OOM


def test_slots_are_gpus_or_shares_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert [slot.gpu for slot in find_slots(None, is_cpu=False)] == ["2", "5"]
    with pytest.raises(ConfigError, match="at most 2"):
        find_slots(3, is_cpu=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,6,7,9")
    assert [slot.gpu for slot in find_slots(None, is_cpu=False, nproc=2)] == ["2,5", "6,7"]
    with pytest.raises(ConfigError, match="at most 0, with 6 of 5 visible GPUs"):
        find_slots(None, is_cpu=False, nproc=6)
    shared = find_slots(3, is_cpu=False, nproc=2, per_gpu=2)
    assert [(slot.name, slot.gpu) for slot in shared] == [
        ("gpu2,5", "2,5"), ("gpu6,7", "6,7"), ("gpu2,5.1", "2,5"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"at most 4, .* and 2 trials on each GPU"):
        find_slots(5, is_cpu=False, nproc=2, per_gpu=2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    cpu = find_slots(4, is_cpu=True)
    assert [slot.environment["OMP_NUM_THREADS"] for slot in cpu] == ["2"] * 4


def test_trials_are_on_the_sweeps_run_as_a_document(world: World) -> None:
    parent = next(r for r in world.store.runs.values() if r.kind == names.KIND_SWEEP)
    document = json.loads(world.store.artifacts[parent.run_id, "sweep/trials.json"])
    assert [trial["number"] for trial in document] == [0, 1, 2]
    assert parent.status is RunStatus.FINISHED
