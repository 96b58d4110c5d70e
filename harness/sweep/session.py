"""One call of `harness sweep`: the search, costs that it waits for, survivors in vLLM, the end.

Everything that can be refused is refused before a study or a run is opened.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.config.bench import BenchConfig
from harness.config.load import Frozen, dump_yaml, load_config
from harness.config.sweep import SweepConfig
from harness.config.train import TrainConfig
from harness.digests import write_atomic
from harness.errors import ConfigError
from harness.launch.ports import Launcher
from harness.settings import Settings
from harness.sweep.coordinator import Coordinator
from harness.sweep.elsewhere import Elsewhere
from harness.sweep.estimate import Estimate, Estimator
from harness.sweep.figures import log_figures
from harness.sweep.journal import open_storage
from harness.sweep.leases import coordinator_lock
from harness.sweep.ledger import Ledger
from harness.sweep.ports import Pause, Place, Ports
from harness.sweep.process import TrialProcess, end_leftover
from harness.sweep.records import Trial
from harness.sweep.serving import Measure, Serving
from harness.sweep.slots import find_slots
from harness.sweep.space import Space
from harness.sweep.study import SweepStudy
from harness.sweep.view import describe
from harness.tracking.reaping import reap
from harness.tracking.records import RunStatus
from harness.tracking.store import Store
from harness.training.plan import build_plan
from harness.training.process import Interrupts

CONFIG_NAME = "sweep.yaml"
_BASE_NAME = "train.yaml"
_BENCH_NAME = "bench.yaml"


class Prepared(Frozen, arbitrary_types_allowed=True):
    """A sweep that was checked, and costs nothing yet."""

    config: SweepConfig
    base: TrainConfig
    bench: BenchConfig
    space: Space
    place: Place
    elsewhere: Elsewhere | None
    warnings: tuple[str, ...]


class Ended(Frozen):
    """How a call of a sweep ended."""

    pause: Pause
    parent_run_id: str
    figures: tuple[str, ...]


def prepare(config: SweepConfig, settings: Settings, launcher: Launcher | None = None) -> Prepared:
    """Loads what a sweep names and holds its space against the base training.

    Args:
        config: The sweep.
        settings: Of the project.
        launcher: Where trials run; None: on this machine.

    Raises:
        ConfigError: A file or key makes no sense; the message names it.
    """
    base = load_config(
        TrainConfig, _find(config.train, settings), _as_overrides(config.fixed), smoke="never"
    )
    bench_path = _find(config.bench, settings) if config.bench else None
    bench = load_config(BenchConfig, bench_path, _as_overrides(config.bench_fixed))
    if config.needs_replay and not base.replay_tokens:
        raise ConfigError(
            "replay_tokens: expected above 0, found 0: trials are compared by their replay",
            "leave it out of the base training and of `fixed`",
        )
    elsewhere = Elsewhere(launcher, base) if launcher else None
    place = Place(
        folder=settings.sweeps_dir / config.name,
        settings=settings,
        slots=elsewhere.slots(config.workers)
        if elsewhere
        else find_slots(
            config.workers,
            is_cpu=base.device == "cpu",
            nproc=base.nproc,
            per_gpu=config.trials_per_gpu,
        ),
    )
    space = Space(config, base)
    for index, baseline in enumerate(config.baselines):
        space.complete(baseline, f"baselines[{index}]")
    config = config.model_copy(update={"storage": _storage(config, place)})
    return Prepared(
        config=config, base=base, bench=bench, space=space, place=place, elsewhere=elsewhere,
        warnings=tuple(_find_unheeded(config, place, elsewhere)),
    )  # fmt: skip


def _find_unheeded(config: SweepConfig, place: Place, elsewhere: Elsewhere | None) -> Iterator[str]:
    """What was asked for and will not be so, in words."""
    if elsewhere and (shortage := elsewhere.find_shortage(config.workers)):
        yield shortage
    if config.trials_per_gpu > 1 and not any(slot.gpu for slot in place.slots):
        why = "a launcher gives each trial GPUs of its own" if elsewhere else "no GPU is used"
        yield f"trials_per_gpu: {config.trials_per_gpu} changes nothing: {why}"


def require_unused(prepared: Prepared) -> None:
    """Refuses to go on with a sweep that was begun.

    Raises:
        ConfigError: There is one of this name.
    """
    place, name = prepared.place, prepared.config.name
    if (place.folder / CONFIG_NAME).exists():
        raise ConfigError(
            f"--no-resume: expected no sweep {name!r} yet, found one in {place.folder}",
            "leave the flag out to go on with it, or say --set name=ANOTHER for a new one",
        )


def require_trainable(prepared: Prepared, store: Store) -> None:
    """Refuses a base training that could not start, before any trial fails for it.

    Raises:
        ConfigError: A reference, the corpus or the shape makes no sense.
        CheckError: An input is not what its manifest says.
        PrerequisiteError: Too little disk.
    """
    plan = build_plan(prepared.base, prepared.place.settings, store, lambda *_: None)
    if plan.prepared is not None:
        shutil.rmtree(plan.prepared.path, ignore_errors=True)


def estimate(prepared: Prepared, store: Store) -> Estimate:
    """What the sweep will take."""
    estimator = Estimator(prepared.base, prepared.place.settings, store)
    return estimator.estimate(prepared.config, prepared.space, len(prepared.place.slots))


def run_sweep(
    prepared: Prepared,
    store: Store,
    measure: Measure,
    watch: Callable[[SweepStudy, tuple[Trial, ...]], None],
) -> Ended:
    """Runs a sweep, or goes on with the one of its name.

    Args:
        prepared: From `prepare`.
        store: The open store.
        measure: Runs `harness bench`.
        watch: Shown the trials whenever there is news.

    Raises:
        ConfigError: The name was used with another space, or another process is at it.
        PrerequisiteError: A trial would not find disk or a GPU.
        KeyboardInterrupt: It was asked to stop; trials saved what they could.
    """
    config, place = prepared.config, prepared.place
    estimator = Estimator(prepared.base, place.settings, store)
    with coordinator_lock(place.folder):
        reap(store)  # a measurement that was killed with its coordinator, among others
        study = SweepStudy(config, prepared.space, open_storage(config.storage, place.folder))
        _keep(prepared)
        ledger = Ledger(store, study)
        if prepared.elsewhere is not None:
            ledger.require_same_code()
        ledger.open()
        with ledger.parent:
            interrupts = Interrupts()
            ports = Ports(
                launch=prepared.elsewhere.launch if prepared.elsewhere else TrialProcess,
                end_leftover=end_leftover,
                require_room=estimator.require_room,
                num_interrupts=lambda: interrupts.count,
                watch=lambda trials: watch(study, trials),
            )
            coordinator = Coordinator(study, ledger, place, ports)
            serving = Serving(study, prepared.bench, measure, store, ledger.parent_run_id)
            try:
                coordinator.recover()
                pause = _search(coordinator, study, serving, interrupts)
            finally:
                coordinator.close()
                ledger.sync(study.trials())
            if pause is Pause.STOPPED:
                ledger.finish(study.trials(), RunStatus.KILLED, "interrupted")
                raise KeyboardInterrupt
            serving.serve()
            watch(study, study.trials())
            figures = log_figures(study, ledger.parent)
            ledger.parent.set_description(describe(study, study.trials()))
            is_failed = pause is Pause.FAILURES
            status = RunStatus.FAILED if is_failed else RunStatus.FINISHED
            ledger.finish(study.trials(), status, pause.value if is_failed else None)
    return Ended(pause=pause, parent_run_id=ledger.parent_run_id, figures=figures)


def reopen(name: str, settings: Settings) -> tuple[SweepStudy, Place]:
    """A sweep that was begun here, by its name alone, to be looked at.

    Raises:
        ConfigError: There is none of that name.
    """
    folder = settings.sweeps_dir / name
    if not (folder / CONFIG_NAME).is_file():
        known = sorted(path.parent.name for path in settings.sweeps_dir.glob(f"*/{CONFIG_NAME}"))
        raise ConfigError(
            f"expected a sweep {name!r} in {settings.sweeps_dir}, found none",
            f"there are: {', '.join(known) or 'none yet'}",
        )
    config = load_config(SweepConfig, folder / CONFIG_NAME)
    base = load_config(TrainConfig, folder / _BASE_NAME)
    study = SweepStudy(config, Space(config, base), open_storage(config.storage, folder))
    return study, Place(folder=folder, settings=settings, slots=())


def _search(
    coordinator: Coordinator, study: SweepStudy, serving: Serving, interrupts: Interrupts
) -> Pause:
    """Searches, with breaks in which step costs are measured on the quiet machine."""
    while True:
        with interrupts:
            pause = coordinator.search()
        if pause is not Pause.COSTS:
            return pause
        serving.measure_costs(coordinator.endings.lacking_costs(study.trials()))
        coordinator.endings.settle_all()


def _keep(prepared: Prepared) -> None:
    """Puts the resolved configuration beside the study, for whoever looks at it by name."""
    folder = prepared.place.folder
    write_atomic(folder / CONFIG_NAME, dump_yaml(prepared.config))
    write_atomic(folder / _BASE_NAME, dump_yaml(prepared.base))
    write_atomic(folder / _BENCH_NAME, dump_yaml(prepared.bench))


def _storage(config: SweepConfig, place: Place) -> str | None:
    """Where the study is: as the YAML says, else where it was begun, else as this machine says."""
    begun = place.folder / CONFIG_NAME
    if config.storage is None and begun.is_file():
        return load_config(SweepConfig, begun).storage
    return config.storage or place.settings.sweep_storage


def _find(reference: str, settings: Settings) -> Path:
    path = Path(reference).expanduser()
    return path if path.is_absolute() or path.is_file() else settings.root_dir / path


def _as_overrides(values: dict[str, object]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]
