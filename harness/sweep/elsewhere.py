"""Trials as tasks of a launcher: how many at once, and what one of them takes of a host."""

from collections.abc import Mapping
from pathlib import Path

from harness.config.train import TrainConfig
from harness.digests import write_atomic
from harness.errors import PrerequisiteError
from harness.launch.ports import Job, Launcher
from harness.launch.tasks import build_task, gpus_of
from harness.sweep.process import TRIAL_MODULE
from harness.sweep.records import LOG_NAME, SPEC_NAME, TrialSpec
from harness.sweep.slots import Slot


class Elsewhere:
    """Where the trials of a sweep run, when not on slots of this machine.

    Args:
        launcher: The place.
        base: The base training; its device and nproc hold for every trial.

    Raises:
        PrerequisiteError: No host of the place has room for a trial.
    """

    def __init__(self, launcher: Launcher, base: TrainConfig) -> None:
        self._launcher = launcher
        self._num_gpus = gpus_of(launcher, 0 if base.device == "cpu" else base.nproc)
        self._num_places = launcher.count_places(self._num_gpus)
        if not self._num_places:
            raise PrerequisiteError("expected room for a trial there, found no host", "add one")

    def find_shortage(self, workers: int | None) -> str | None:
        """In words, that fewer trials run at once than was asked for; None where all do.

        No error as on this machine: a cluster may be larger tomorrow, and the sweep goes on then.
        """
        if workers is None or workers <= self._num_places:
            return None
        return (
            f"workers: {workers} asked for, found room for {self._num_places} trials at once; "
            "where hosts are added, the same command called again takes them"
        )

    def slots(self, workers: int | None) -> tuple[Slot, ...]:
        """A slot for each trial that runs at once; the launcher says where."""
        count = min(workers or self._num_places, self._num_places)
        return tuple(Slot(name=f"place{index}", environment={}) for index in range(count))

    def launch(self, spec: TrialSpec, folder: Path, environment: Mapping[str, str]) -> Job:
        """Hands an attempt of a trial over; see `ports.Ports.launch`."""
        write_atomic(folder / SPEC_NAME, spec.model_dump_json(indent=1))
        task = build_task(
            f"{spec.sweep_name} trial {spec.number}",
            ("-m", TRIAL_MODULE, str(folder / SPEC_NAME)),
            spec.settings,
            folder / LOG_NAME,
            num_gpus=self._num_gpus,
        )
        changes = {"environment": {**task.environment, **environment}}
        return self._launcher.launch(task.model_copy(update=changes))
