"""Where trials run, and that none is started where it would not find disk or memory."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.sweep_world import BASE, FakeWorker, World

from harness.errors import PrerequisiteError
from harness.sweep.estimate import Estimator
from harness.sweep.ports import Pause
from harness.sweep.records import TrialSpec, TrialState
from harness.sweep.slots import Slot, find_slots
from harness.sweep.space import Point

POINT = Point(train=BASE, k=3)


def write_nvidia_smi(folder: Path, free_mib: Mapping[str, int], total_mib: int = 80_000) -> None:
    """A program of that name which knows these GPUs; unknown ones make it fail."""
    cases = "\n".join(
        f'  --id={gpu}) echo "{gpu}, GPU-{gpu}, Test, {free}, {total_mib}";;'
        for gpu, free in free_mib.items()
    )
    script = folder / "nvidia-smi"
    script.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\n  *) exit 6;;\nesac\n')
    script.chmod(0o755)


class Watched(World):
    """Notes which GPUs are in use when another trial is started."""

    def __init__(self, folder: Path, **config: object) -> None:
        super().__init__(folder, **config)  # type: ignore[arg-type]
        self.at_once: list[list[str]] = []

    def launch(self, spec: TrialSpec, folder: Path, environment: Mapping[str, str]) -> FakeWorker:
        worker = super().launch(spec, folder, environment)
        alive = [w for w in self.workers if w.num_looks > 0]
        self.at_once.append([w.environment["CUDA_VISIBLE_DEVICES"] for w in alive])
        return worker


def test_each_trial_sees_one_gpu_that_no_other_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-1f,0")
    world = Watched(tmp_path, n_trials=9)
    world.slots, world.num_looks = find_slots(None, is_cpu=False), 4
    _, study, _ = world.run()
    assert max(map(len, world.at_once)) == 3, "the GPUs are used at the same time"
    assert all(len(set(found)) == len(found) for found in world.at_once)
    used = {w.environment["CUDA_VISIBLE_DEVICES"] for w in world.workers}
    assert used == {"3", "GPU-1f", "0"}
    assert {t.facts["slot"] for t in study.trials()} == {"gpu3", "gpuGPU-1f", "gpu0"}
    assert all(t.state is TrialState.COMPLETE for t in study.trials())


class Estimating(Estimator):
    """With everything but a verifier and a corpus."""

    def __init__(self, folder: Path) -> None:
        self._settings = SimpleNamespace(checkpoints_dir=folder)  # type: ignore[assignment]

    def needed_bytes(self, train: object) -> int:
        return 10**9


@pytest.mark.parametrize(("free", "is_refused"), [(2 * 10**9, True), (3 * 10**9, False)])
def test_disk_is_looked_at_before_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_refused: bool
) -> None:
    monkeypatch.setattr(
        "harness.sweep.estimate.shutil.disk_usage", lambda _: SimpleNamespace(free=free)
    )
    estimator = Estimating(tmp_path)
    slot = Slot(name="cpu0", environment={})
    if not is_refused:
        estimator.require_room([POINT], slot)
        with pytest.raises(PrerequisiteError, match=r"2 trials at once need up to 3\.1 GB"):
            estimator.require_room([POINT, POINT], slot)
        return
    with pytest.raises(PrerequisiteError, match=r"need up to 2\.1 GB .* has 2\.0 GB free"):
        estimator.require_room([POINT], slot)


@pytest.mark.parametrize(
    ("free_mib", "num_beside", "is_refused"),
    [(30_000, 0, True), (50_000, 0, False), (30_000, 1, False), (15_000, 1, True)],
)
def test_a_gpu_that_another_uses_is_not_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_mib: int,
    num_beside: int,
    is_refused: bool,
) -> None:
    write_nvidia_smi(tmp_path, {"1": free_mib})
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(
        "harness.sweep.estimate.shutil.disk_usage", lambda _: SimpleNamespace(free=10**12)
    )
    slot = Slot(name="gpu1", environment={}, gpu="1", num_sharing=2)
    if not is_refused:
        Estimating(tmp_path).require_room([POINT], slot, num_beside)
        return
    with pytest.raises(PrerequisiteError, match=rf"GPU 1 has {free_mib / 953.7:.1f} of 83\.9 GB"):
        Estimating(tmp_path).require_room([POINT], slot, num_beside)


def refuse(*_: object) -> None:
    raise PrerequisiteError("no room", "make some")


def test_a_busy_gpu_is_left_out_while_others_are_free(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=4)
    world.slots = tuple(Slot(name=f"gpu{i}", environment={}, gpu=f"{i}") for i in range(2))
    world.num_looks = 3
    world.require_room = (  # type: ignore[method-assign]
        lambda _, slot, num_beside: refuse() if slot.name == "gpu0" else None
    )
    pause, study, _ = world.run()
    assert pause is Pause.DONE
    assert {t.facts["slot"] for t in study.trials()} == {"gpu1"}
    assert set(world.launches.values()) == {1}


def test_without_any_room_the_call_ends_and_the_next_one_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, n_trials=3)
    world.require_room = refuse  # type: ignore[method-assign]
    with pytest.raises(PrerequisiteError, match="no room"):
        world.run()
    assert not world.launches
    del world.require_room  # type: ignore[method-assign]
    _, study, _ = world.run()
    assert [t.state for t in study.trials()] == [TrialState.COMPLETE] * 3
    assert set(world.launches.values()) == {1}
