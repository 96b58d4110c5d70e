"""A sweep without trainings: what a trial's process would say is written down at once."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fakes.memory_store import MemoryStore

from harness.config.sweep import SweepConfig
from harness.config.train import TrainConfig
from harness.settings import Settings, load_settings
from harness.sweep.coordinator import Coordinator
from harness.sweep.journal import open_storage
from harness.sweep.ledger import Ledger
from harness.sweep.ports import Pause, Place, Ports
from harness.sweep.records import (
    Epoch,
    Event,
    Failed,
    Reason,
    RunOpened,
    Stopped,
    Trained,
    Trial,
    TrialSpec,
    events_path,
)
from harness.sweep.slots import Slot
from harness.sweep.space import Point, Space
from harness.sweep.study import SweepStudy
from harness.tracking import names
from harness.tracking.records import RunStatus

BASE = TrainConfig(verifier="v", corpus="c", head_dim=8, draft_vocab_size=32, epochs=3)
Script = Callable[[TrialSpec], list[Event]]
EXIT_CODES = {Trained: 0, Failed: 1, Stopped: 130}


class Crash(BaseException):
    """The coordinator's sudden death."""


def quality(train: TrainConfig) -> float:
    """Acceptance length of a training: best at lr 2e-3, more with more steps unrolled."""
    return 2.0 - abs(train.lr - 2e-3) * 200 + 0.01 * train.ttt_steps


def trains(spec: TrialSpec, *, num_epochs: int = 3, architecture: str = "a") -> list[Event]:
    """The words of a training without trouble."""
    final = quality(spec.train)
    epochs = [
        Epoch(
            epoch=epoch,
            step=10 * (epoch + 1),
            model_id=f"m-{spec.number}-{epoch}",
            architecture=architecture,
            val_loss=5.0 - final,
            acceptance_length=final * (epoch + 1) / num_epochs,
            by_prompt={f"p{i}": final * (epoch + 1) / num_epochs + i / 100 for i in range(10)},
        )
        for epoch in range(num_epochs)
    ]
    done = Trained(
        run_id="",
        model_id=f"m-{spec.number}-{num_epochs - 1}",
        path=Path(f"/drafters/{spec.number}"),
        architecture=architecture,
        epoch=num_epochs - 1,
        val_loss=5.0 - final,
        acceptance_length=final,
        num_parameters=1000 * spec.train.ttt_steps,
        train_s=10.0 * spec.train.ttt_steps,
    )
    return [*epochs, done]


def trains_in_halves(spec: TrialSpec) -> list[Event]:
    """The words of a training that is replayed in the middle of each epoch, too."""
    found: list[Event] = []
    for event in trains(spec):
        if isinstance(event, Epoch):
            half = {"part": 0.5, "model_id": None, "resource": 2 * event.epoch + 1}
            found.append(event.model_copy(update=half))
            event = event.model_copy(update={"resource": 2 * event.epoch + 2})  # noqa: PLW2901
        found.append(event)
    return found


class FakeWorker:
    """A process that has said all before it is asked, and ends after so many looks at it."""

    def __init__(
        self, code: int, num_looks: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.code = code
        self.num_looks = num_looks
        self.environment = dict(environment or {})
        self.num_interrupts = 0
        self.is_lost = False

    def poll(self) -> int | None:
        self.num_looks -= 1
        return self.code if self.num_looks < 0 else None

    def interrupt(self) -> None:
        self.num_interrupts += 1

    def kill(self) -> None:
        self.code, self.num_looks = -9, 0

    def close(self) -> None:
        pass


class World:
    """Everything of a sweep but its trainings, kept over the deaths of its coordinators."""

    def __init__(self, folder: Path, script: Script = trains, **config: object) -> None:
        self.folder = folder
        self.store = MemoryStore(folder)
        self.script = script
        self.launches: Counter[int] = Counter()
        self.specs: list[TrialSpec] = []
        self.workers: list[FakeWorker] = []
        self.num_interrupts = 0
        self.num_losses = 0
        """Hosts that go away with the trials that are launched next."""
        self.now_s = 0.0
        self.num_looks = 0
        self.seen: list[tuple[Trial, ...]] = []
        self.settings: Settings = load_settings(folder)
        self.config = make_config(**config)
        self.base = BASE
        self.slots = tuple(
            Slot(name=f"s{i}", environment={}) for i in range(self.config.workers or 1)
        )

    def open_study(self) -> SweepStudy:
        space = Space(self.config, self.base)
        return SweepStudy(self.config, space, open_storage(None, self.folder))

    def run(self) -> tuple[Pause, SweepStudy, Coordinator]:
        """One coordinator from its start to its end."""
        study = self.open_study()
        ledger = Ledger(self.store, study, lambda: self.now_s)
        ledger.open()
        place = Place(self.folder, self.settings, self.slots)
        coordinator = Coordinator(study, ledger, place, self.ports())
        coordinator.recover()
        pause = coordinator.search()
        if pause is not Pause.COSTS:
            ledger.finish(study.trials(), RunStatus.FINISHED, None)
        return pause, study, coordinator

    def ports(self) -> Ports:
        return Ports(
            launch=self.launch,
            end_leftover=lambda *_: False,
            require_room=self.require_room,
            num_interrupts=lambda: self.num_interrupts,
            watch=self.seen.append,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def require_room(self, points: Sequence[Point], slot: Slot, num_beside: int) -> None:
        """There is room for everything."""

    def launch(self, spec: TrialSpec, folder: Path, environment: Mapping[str, str]) -> FakeWorker:
        self.launches[spec.number] += 1
        self.specs.append(spec)
        run_id = spec.run_id or self._start_run(spec)
        events = self.script(spec)
        events = [e.model_copy(update={"run_id": run_id}) if isinstance(e, Trained) else e
                  for e in events]  # fmt: skip
        lines = [event.model_dump_json() for event in (RunOpened(run_id=run_id), *events)]
        events_path(folder, spec.attempt).write_text("\n".join(lines) + "\n")
        last = type(events[-1]) if events else None
        status = RunStatus.FINISHED if last is Trained else RunStatus.KILLED
        if self.num_losses:
            last = None
            events_path(folder, spec.attempt).write_text(lines[0] + "\n")
        if last is not None:
            self.store.attach_run(run_id).finish(status)
        code = EXIT_CODES.get(last, -9) if last else -9
        worker = FakeWorker(code, self.num_looks, environment)
        worker.is_lost, self.num_losses = self.num_losses > 0, max(self.num_losses - 1, 0)
        self.workers.append(worker)
        return worker

    def _start_run(self, spec: TrialSpec) -> str:
        run = self.store.start_run(
            names.KIND_TRAIN,
            spec.train.name or "t",
            experiment=names.EXPERIMENT_SWEEP,
            tags={
                names.TAG_SWEEP_ID: spec.sweep_id,
                names.TAG_TRIAL: spec.number,
                names.TAG_PROCESS_START: "never",  # of a process that is gone
            },
            parent_run_id=spec.parent_run_id,
        )
        return run.run_id


def make_config(**changes: object) -> SweepConfig:
    values = {
        "name": "tiny",
        "train": "train.yaml",
        "objectives": [{"metric": "acceptance_length"}],
        "space": {
            "lr": {"type": "float", "low": 1e-4, "high": 3e-3, "log": True},
            "ttt_steps": {"type": "int", "low": 1, "high": 4},
        },
        "n_trials": 6,
        "sampler": {"type": "random", "seed": 3},
    }
    return SweepConfig.model_validate({**values, **changes})


def fails(reason: Reason, detail: str = "so it went") -> Script:
    return lambda spec: [Failed(reason=reason, detail=detail)]
