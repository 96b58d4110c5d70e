"""What a user wants compared, found: each reference as drafters with what was measured of them.

A training or checkpoint brings the newest bench that measured it, if possible together with the
others; else its newest replay. A bench, a replay or a result document brings all its drafters.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from eval.replayresult import ReplayResult
from eval.result import BenchResult
from harness.drafter.drafter import drafter_digest
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.evidence import find_joint_bench
from harness.tracking.measurements import read_bench_result
from harness.tracking.records import Checkpoint, RunStatus, RunSummary
from harness.tracking.replays import read_replay_result
from harness.tracking.resolve import (
    complete_run_id,
    find_checkpoint,
    recognise,
    resolve_drafter,
)
from harness.tracking.store import Store

_NUM_LOOKED_AT = 50
"""Newest measurements that are searched for weights that the store knows only by their digest."""
_RUN_PREFIX = "run:"


class Measurement(NamedTuple):
    """A result document, and where it was found."""

    document: BenchResult | ReplayResult
    place: str
    """Name of its run, or the path of the document."""
    run: RunSummary | None

    @property
    def digests(self) -> dict[str, str | None]:
        """What was measured: name in the document to the root digest of the weights."""
        document = self.document
        if isinstance(document, ReplayResult):
            return {one.drafter: one.digest for one in document.drafters}
        known = {one.name: one.digest for one in document.spec.drafters}
        return {name: known.get(name) for name in document.spec.arm_names}


class Subject(NamedTuple):
    """One drafter to be compared. What is not known is None."""

    reference: str
    digest: str | None
    training: RunSummary | None
    checkpoint: Checkpoint | None
    measurement: Measurement | None = None
    arm: str | None = None
    """What it is called in its measurement."""


def find_subjects(
    references: Sequence[str], settings: Settings, store: Store
) -> tuple[Subject, ...]:
    """The drafters that references mean, in their order, each once.

    Raises:
        ConfigError: A reference means nothing, or a run that no drafter came out of.
        TrackingError: A result was changed after it was written.
    """
    found: list[Subject] = []
    for reference in references:
        measurement = _named_measurement(reference, store)
        if measurement is None:
            found.append(_find_drafter(reference, settings, store))
        else:
            found += _all_in(measurement, reference, store)
    return _each_once(_measured(found, store))


def champion_reference(against: str, references: Sequence[str], store: Store) -> str:
    """What `--against champion` means: the champion of the one model there is.

    Args:
        against: `champion`, or a reference, which is returned as it is.
        references: What it is to be compared with, for the message.
        store: The open store.

    Raises:
        ConfigError: No model has a champion, or several have.
    """
    if against != names.ALIAS_CHAMPION:
        return against
    registry = store.registry
    models = [n for n in registry.names() if names.ALIAS_CHAMPION in registry.aliases(n)]
    if len(models) == 1:
        return f"models:/{models[0]}@{names.ALIAS_CHAMPION}"
    listed = ", ".join(f"models:/{name}@champion" for name in models) or "none"
    raise ConfigError(
        f"expected one champion to compare {' and '.join(references)} with, found {listed}",
        "name it: --against models:/<name>@champion" if models else "harness promote makes one",
    )


def _named_measurement(reference: str, store: Store) -> Measurement | None:
    """The document that a reference names; None where it names a drafter."""
    if reference.endswith(".json"):
        return _read_document(Path(reference).expanduser())
    run_id = reference.removeprefix(_RUN_PREFIX)
    if run_id == reference or "@" in reference or not run_id.isalnum():
        return None
    run = store.get_run(complete_run_id(run_id, store))
    return _measurement_of(run, store)


def _read_document(path: Path) -> Measurement:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"expected a result document, cannot read {path}: {error}") from error
    for model in (BenchResult, ReplayResult):
        try:
            return Measurement(model.model_validate_json(text), str(path), None)
        except ValidationError:
            continue
    raise ConfigError(
        f"expected the result.json of a bench or a replay, found something else: {path}",
        "harness bench and harness replay say where they keep it",
    )


def _measurement_of(run: RunSummary, store: Store) -> Measurement | None:
    if run.kind == names.KIND_BENCH:
        return Measurement(read_bench_result(store, run.run_id), run.name, run)
    if run.kind == names.KIND_REPLAY:
        return Measurement(read_replay_result(store, run.run_id), run.name, run)
    return None


def _all_in(measurement: Measurement, reference: str, store: Store) -> list[Subject]:
    """Every drafter of a measurement, with the checkpoint that it is."""
    inputs = measurement.run.model_inputs if measurement.run else ()
    checkpoints = {c.digest: c for c in map(store.get_checkpoint, inputs)}
    found = []
    for name, digest in measurement.digests.items():
        checkpoint = checkpoints.get(digest or "")
        training = store.get_run(checkpoint.run_id) if checkpoint else None
        shown = name if len(measurement.digests) > 1 else reference
        found.append(Subject(shown, digest, training, checkpoint, measurement, name))
    return found


def _find_drafter(reference: str, settings: Settings, store: Store) -> Subject:
    if reference.startswith((_RUN_PREFIX, "models:")):
        reference, checkpoint = find_checkpoint(reference, store)
        trained_by = store.get_run(checkpoint.run_id)
        return Subject(reference, checkpoint.digest, trained_by, checkpoint)
    drafter = recognise(resolve_drafter(reference, settings, store), settings, store)
    digest = drafter.digest or drafter_digest(drafter.path).root
    training = store.get_run(drafter.run_id) if drafter.run_id else None
    return Subject(reference, digest, training, drafter.checkpoint)


def _measured(subjects: Sequence[Subject], store: Store) -> list[Subject]:
    """Each with its measurement: of all together where there is one, else its own newest."""
    open_ones = [s for s in subjects if s.measurement is None]
    joint = _find_joint(open_ones, store) if len(open_ones) > 1 else None
    return [
        subject if subject.measurement else _inside(subject, joint) or _with_newest(subject, store)
        for subject in subjects
    ]


def _find_joint(subjects: Sequence[Subject], store: Store) -> Measurement | None:
    checkpoints = [s.checkpoint for s in subjects if s.checkpoint]
    if len(checkpoints) < len(subjects):
        return None
    search = find_joint_bench(checkpoints, store)
    if search.bench is None or search.result is None:
        return None
    return Measurement(search.result, search.bench.name, search.bench)


def _with_newest(subject: Subject, store: Store) -> Subject:
    for kind in (names.KIND_BENCH, names.KIND_REPLAY):
        for run in _candidates(subject, kind, store):
            found = _inside(subject, _measurement_of(run, store))
            if found:
                return found
    return subject


def _candidates(subject: Subject, kind: str, store: Store) -> Iterable[RunSummary]:
    """Finished measurements that say they measured these weights, newest first."""
    is_done = RunStatus.FINISHED
    if subject.checkpoint:
        wanted = names.input_tags([subject.checkpoint.model_id])
        yield from store.find_runs(kind=kind, tags=wanted, status=is_done, limit=1)
        return
    for run in store.find_runs(kind=kind, status=is_done, limit=_NUM_LOOKED_AT):
        measured: Mapping[str, str] = json.loads(run.tags.get(names.TAG_DRAFTER_DIGESTS, "{}"))
        if subject.digest in measured.values():
            yield run


def _inside(subject: Subject, measurement: Measurement | None) -> Subject | None:
    """The subject as an arm of a measurement; None where its weights are not in there."""
    if measurement is None:
        return None
    for name, digest in measurement.digests.items():
        if digest is not None and digest == subject.digest:
            return subject._replace(measurement=measurement, arm=name)
    return None


def _each_once(subjects: Iterable[Subject]) -> tuple[Subject, ...]:
    """Without repetitions: the same checkpoint in the same measurement."""
    kept: dict[object, Subject] = {}
    for subject in subjects:
        found = subject.measurement
        weights = subject.checkpoint.model_id if subject.checkpoint else subject.digest
        key = (weights or subject.reference, subject.arm, found.place if found else None)
        kept.setdefault(key, subject)
    return tuple(kept.values())
