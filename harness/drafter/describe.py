"""A drafter's facts as a document, and what two drafters differ in."""

from typing import Any

from harness.config.load import Frozen, flatten
from harness.drafter.drafter import Drafter, drafter_digest
from harness.drafter.keys import plain_name

DIGEST_BELOW_BYTES = 128 << 20
"""Up to this size hashing takes well below a second, so the digest is shown unasked."""
SCHEMA_VERSION = 1


class Tensor(Frozen):
    """One tensor as a reader wants it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Description(Frozen):
    """What `harness inspect` shows of one drafter."""

    schema_version: int = SCHEMA_VERSION
    reference: str
    path: str
    digest: str | None
    """Root digest; None where it was not asked for and the weights are large."""
    facts: dict[str, Any]
    tensors: tuple[Tensor, ...]


class Difference(Frozen):
    """One fact that two drafters do not share; None is a fact that a drafter lacks."""

    name: str
    left: Any
    right: Any


class Comparison(Frozen):
    """What `harness inspect A B` shows."""

    schema_version: int = SCHEMA_VERSION
    left: str
    right: str
    differences: tuple[Difference, ...]


_NOT_FACTS = {"path", "config", "tensors", "given"}


def describe(
    drafter: Drafter, reference: str, *, recorded_digest: str | None = None, digest: bool = False
) -> Description:
    """The facts of a drafter as one document.

    Args:
        drafter: The drafter.
        reference: What the user called it.
        recorded_digest: The digest that the store knows for it.
        digest: Hash the weights whatever their size.
    """
    is_cheap = drafter.num_bytes <= DIGEST_BELOW_BYTES
    root = drafter_digest(drafter.path).root if digest or is_cheap else recorded_digest
    facts = drafter.model_dump(mode="json", exclude=_NOT_FACTS)
    tensors = tuple(
        Tensor(name=name, shape=header.shape, dtype=header.dtype)
        for name, header in sorted(drafter.tensors.items())
    )
    return Description(
        reference=reference, path=str(drafter.path), digest=root, facts=facts, tensors=tensors
    )


def compare(left: Description, right: Description) -> Comparison:
    """Facts, tensors and digest that differ, by name; tensors by their plain names."""
    pairs = [("digest", left.digest, right.digest)]
    pairs += _pairs(flatten(left.facts), flatten(right.facts))
    pairs += _pairs(_spelled(left), _spelled(right))
    found = tuple(Difference(name=n, left=a, right=b) for n, a, b in pairs if a != b)
    return Comparison(left=left.reference, right=right.reference, differences=found)


def _pairs(left: dict[str, Any], right: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, left.get(name), right.get(name)) for name in left | right]


def _spelled(description: Description) -> dict[str, str]:
    return {plain_name(t.name): f"{t.dtype} {list(t.shape)}" for t in description.tensors}
