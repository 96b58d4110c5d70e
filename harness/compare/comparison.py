"""Drafters side by side as one document: what differs in them, what was measured, who is faster."""

from collections.abc import Sequence

from eval.conditions import Unlike
from eval.result import BenchResult
from harness.compare.differences import param_differences, provenance_differences
from harness.compare.document import Compared, Comparison
from harness.compare.labels import label_subjects
from harness.compare.measured import (
    Measured,
    cautions_of,
    conditions_of,
    figures_of,
    measured_ones,
    pairs_of,
    unlike_conditions,
)
from harness.compare.subjects import Subject, champion_reference, find_subjects
from harness.errors import CheckError, ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.store import Store

_SHOWN_CHARACTERS = 40
_VALIDATION = (
    names.METRIC_VAL_ACCEPTANCE_LENGTH,
    names.METRIC_EVAL_ACCEPTANCE_LENGTH,
    names.METRIC_VAL_LOSS,
)


def compare(
    references: Sequence[str],
    settings: Settings,
    store: Store,
    *,
    against: str | None = None,
    is_forced: bool = False,
    is_single_allowed: bool = False,
) -> Comparison:
    """Puts drafters side by side.

    Args:
        references: Drafters, trainings, benches, replays or result documents.
        settings: Where the project is.
        store: The open store.
        against: What all are compared with, `champion` for that of the only model; None: the first.
        is_forced: Compare figures of unlike measurements all the same.
        is_single_allowed: One drafter is enough.

    Raises:
        ConfigError: A reference means nothing, or there is only one drafter.
        CheckError: The measurements are of unlike things.
    """
    base = [champion_reference(against, references, store)] if against else []
    subjects = find_subjects([*base, *references], settings, store)
    if len(subjects) < 2 and not is_single_allowed:  # noqa: PLR2004 - a comparison is of two
        raise ConfigError(
            f"expected two drafters or more to compare, found one: {subjects[0].reference}",
            "harness report shows a single one",
        )
    labels = label_subjects(subjects)
    measured = measured_ones(labels, subjects)
    different = unlike_conditions(measured)
    if different and not is_forced:
        raise _refusal(different, measured, subjects)
    trainings = [subject.training for subject in subjects]
    by_label = {one.label: one for one in measured}
    return Comparison(
        subjects=tuple(
            _compared(label, subject, by_label.get(label))
            for label, subject in zip(labels, subjects, strict=True)
        ),
        unlike=different,
        conditions=conditions_of(measured),
        params=param_differences(trainings),
        provenance=provenance_differences(trainings, store),
        figures=tuple(row for one in measured for row in figures_of(one)),
        pairs=tuple(pairs_of(measured, is_forced=is_forced)),
    )


def _compared(label: str, subject: Subject, measured: Measured | None) -> Compared:
    checkpoint, measurement = subject.checkpoint, subject.measurement
    known = checkpoint.metrics if checkpoint else {}
    return Compared(
        label=label,
        reference=subject.reference,
        digest=subject.digest,
        run_id=subject.training.run_id if subject.training else None,
        model_id=checkpoint.model_id if checkpoint else None,
        measured_in=measurement.place if measurement else None,
        measurement_run_id=measurement.run.run_id if measurement and measurement.run else None,
        is_timed=measurement is not None and isinstance(measurement.document, BenchResult),
        validation={key: known[key] for key in _VALIDATION if key in known},
        cautions=cautions_of(measured) if measured else (),
    )


def _refusal(
    different: Sequence[Unlike], measured: Sequence[Measured], subjects: Sequence[Subject]
) -> CheckError:
    lines = [
        f"  {one.what}: "
        + "; ".join(
            f"{value[:_SHOWN_CHARACTERS]} ({who.label})"
            for value, who in zip(one.values, measured, strict=True)
        )
        for one in different
    ]
    together = " ".join(f"--drafter {subject.reference}" for subject in subjects)
    return CheckError(
        "\n".join(["expected measurements of like things to compare, found others:", *lines]),
        f"measure them together: harness bench {together}; --force compares them all the same",
    )
