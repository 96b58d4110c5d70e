"""What a sweep would do, before it does anything: the space, its first points, where, how long."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import ConfigError, PrerequisiteError
from harness.sweep.journal import open_storage
from harness.sweep.session import Prepared, estimate
from harness.sweep.slots import busy_reason
from harness.sweep.space import describe_axis, spell
from harness.sweep.study import SweepStudy
from harness.tracking.store import Store

_NUM_POINTS = 5

Section = tuple[str, dict[str, object]]


def describe(prepared: Prepared, store: Store) -> Iterator[Section]:
    """Sections of names and values; nothing is started, and nothing of a sweep is written."""
    config, place = prepared.config, prepared.place
    limits = {k: v for k, v in config.limits.model_dump().items() if v is not None}
    yield (
        f"sweep {config.name}",
        {
            "objective": ", ".join(f"{o.resolved} {o.metric}" for o in config.objectives),
            "limits": spell(limits) if limits else "none",
            "trials": config.n_trials,
            "sampler": f"{config.sampler.type}, seed {config.sampler.seed}",
            "pruner": spell(config.pruner.model_dump()),
            "served": f"{config.num_served} best and the base",
            "study": config.storage or place.folder,
        },
    )
    yield "space", {key: describe_axis(axis) for key, axis in prepared.space.axes.items()}
    yield "first points", dict(_first_points(prepared))
    yield (
        "each trial",
        {
            "command": "python -m harness.sweep.trial SPEC",
            "as": f"harness train {config.train} with the point's keys",
            "folder": place.folder / "trials" / "<number>",
        },
    )
    yield (
        "placement",
        {
            slot.name: spell({**slot.environment, "busy": busy_reason(slot) or "no"})
            for slot in place.slots
        },
    )
    try:
        found = estimate(prepared, store)
    except (ConfigError, PrerequisiteError) as error:
        yield "estimate", {"none": f"an input is not here: {error.message.splitlines()[0]}"}
        return
    total, free = found.total_bytes / 1e9, found.free_bytes / 1e9
    yield (
        "estimate, at most",
        {
            "disk of a trial": f"{found.trial_bytes / 1e9:.2f} GB",
            "disk of all": f"{total:.2f} GB of {free:.1f} GB free",
            "hidden states": f"{found.corpus_bytes / 1e9:.2f} GB, there already",
            "a training": _minutes(found.trial_s),
            "all trainings": _minutes(found.total_s),
        },
    )


def _first_points(prepared: Prepared) -> Iterator[tuple[str, object]]:
    """As a new sweep of this seed would begin; trials that are told change what TPE says next."""
    config = prepared.config.model_copy(update={"storage": None})
    count = min(_NUM_POINTS, config.n_trials)
    with tempfile.TemporaryDirectory() as folder:
        study = SweepStudy(config, prepared.space, open_storage(None, Path(folder)))
        for _ in range(count):
            trial = study.ask()
            yield f"{trial.number} ({trial.origin})", spell(trial.params)


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return "unknown: no training of this verifier is in the store"
    return f"{seconds / 60:.1f} min"
