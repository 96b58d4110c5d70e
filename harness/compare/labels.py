"""What drafters are called beside one another: short, and no two alike."""

from collections.abc import Callable, Sequence

from harness.compare.subjects import Subject
from harness.tracking import names


def label_subjects(subjects: Sequence[Subject]) -> list[str]:
    """The name of the training; where that is not enough the epoch, the measurement, the reference.

    `demo-base #2`, `demo-base #2 epoch 1`. A drafter of no training has its reference's last part.
    """
    labels = [
        subject.training.name if subject.training else names.short_reference(subject.reference)
        for subject in subjects
    ]
    for more in (_epoch, _place, _reference):
        labels = _with_more(labels, subjects, more)
    return labels


def _with_more(
    labels: list[str], subjects: Sequence[Subject], more: Callable[[Subject], str]
) -> list[str]:
    """Adds to labels that several have."""
    return [
        f"{label} {more(subject)}".rstrip() if labels.count(label) > 1 else label
        for label, subject in zip(labels, subjects, strict=True)
    ]


def _epoch(subject: Subject) -> str:
    found = subject.checkpoint
    return "" if found is None or found.epoch is None else f"epoch {found.epoch}"


def _place(subject: Subject) -> str:
    return f"in {subject.measurement.place}" if subject.measurement else ""


def _reference(subject: Subject) -> str:
    return subject.reference
