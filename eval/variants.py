"""Other readings of a drafter's config that its tensors would fit as well: each a single change."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from eval.facts import DraftFacts

DEFAULT_ROPE: dict[str, Any] = {"rope_theta": 10000.0, "rope_type": "default"}
USUAL_WINDOW = 2048
"""What speculators trains with unless it is told otherwise."""
_ACTIVATIONS = ("silu", "gelu")
EMBED = "embed_tokens.weight"


class Change(NamedTuple):
    """One thing that may have been lost on the way from a training to a file."""

    subject: str
    """What is changed, as `DraftFacts` or the tensor is called. Of one subject one change holds."""
    value: object
    """What it is changed to, as a config would hold it."""
    facts: Mapping[str, Any] = {}
    """Fields of the facts with their new values."""
    tensors: Mapping[str, Tensor] = {}
    """Tensors in the place of the drafter's own, or of those that it shares."""
    first_entry: int = 0
    """Entries before this one cannot tell the difference: their context is too short."""
    window: int | None = None
    """A window that no shorter context tells from none at all."""


def list_changes(
    facts: DraftFacts,
    num_layers: int,
    *,
    rope_parameters: Iterable[Mapping[str, Any]] = (),
    windows: Iterable[int] = (),
    embeddings: Mapping[str, Tensor] | None = None,
) -> list[Change]:
    """Every change that the tensors allow.

    Args:
        facts: The drafter as its config says.
        num_layers: Of the verifier.
        rope_parameters: Others that it may have been trained with; the default is added.
        windows: Sliding windows that it may have been trained with; the usual one is added.
        embeddings: Other input embeddings [V, D], by whose they are.
    """
    changes = [
        Change(name, not getattr(facts, name), {name: not getattr(facts, name)})
        for name in ("norm_before_residual", "norm_output")
    ]
    changes += [
        Change("aux_layer_ids", ids, {"aux_layer_ids": ids})
        for ids in _shifted(facts.aux_layer_ids, num_layers)
    ]
    for rope in _distinct([*rope_parameters, DEFAULT_ROPE], facts.rope_parameters):
        changes.append(Change("rope_parameters", rope, {"rope_parameters": rope}))
    changes += _window_changes(facts, [*windows, USUAL_WINDOW])
    changes += [
        Change("hidden_act", name, {"hidden_act": name})
        for name in _ACTIVATIONS
        if name != facts.hidden_act
    ]
    for owner, tensor in (embeddings or {}).items():
        if tuple(tensor.shape) == (facts.vocab_size, facts.hidden_size):
            changes.append(Change(EMBED, owner, tensors={EMBED: tensor}))
    return changes


def needed_layers(changes: Sequence[Change], facts: DraftFacts) -> tuple[int, ...]:
    """Verifier layers whose states some change or the drafter itself asks for, rising."""
    asked = [change.facts.get("aux_layer_ids", ()) for change in changes]
    return tuple(sorted({layer for ids in (*asked, facts.aux_layer_ids) for layer in ids}))


def _shifted(ids: tuple[int, ...], num_layers: int) -> list[tuple[int, ...]]:
    """The same layers in the convention of their outputs, and back."""
    found = [tuple(i + step for i in ids) for step in (1, -1)]
    return [shifted for shifted in found if min(shifted) >= 0 and max(shifted) <= num_layers]


def _window_changes(facts: DraftFacts, windows: Iterable[int]) -> list[Change]:
    """Every layer with another window, or none with any; told apart only beyond the smaller one."""
    count, present = facts.num_layers, [w for w in facts.windows if w is not None]
    candidates: list[int | None] = [*dict.fromkeys(windows)]
    if present:
        candidates.append(None)
    changes = []
    for window in candidates:
        new = (window,) * count
        if new != facts.windows:
            first = min([*present, *([window] if window else [])])
            changes.append(
                Change("windows", window, {"windows": new}, first_entry=first, window=window)
            )
    return changes


def _distinct(
    candidates: Iterable[Mapping[str, Any]], known: Mapping[str, Any]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in candidates:
        full = {**DEFAULT_ROPE, **one}
        if full not in (*found, {**DEFAULT_ROPE, **known}):
            found.append(full)
    return found
