"""Whose hidden states are these? A few rows of a corpus, computed again by a verifier.

Tells another revision of the verifier (no layer fits) from another convention of layer ids (each
state fits a neighbour of its layer): in either case a drafter is served other inputs than it was
trained on, and no file of it shows that. For verifiers that one process can hold.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eval.capture import LayerCapture, default_batch_tokens
from eval.facts import VerifierFacts
from eval.sequences import Row
from eval.spec import Frozen

_MOST_DIFFERENCE = {"float32": 0.005, "bfloat16": 0.06, "float16": 0.02}
"""Relative difference that the same layer of the same weights may have, by the dtype of the states:
0 to 1e-6 in float32 on one machine; bfloat16 keeps 8 bits and engines round in other places."""
_DEFAULT_TOKENS = 256
_MIN_NORM = 1e-12


class LayerStates(Frozen):
    """The states of one layer id, as they are kept and as they are computed again."""

    layer_id: int
    difference: float
    """Median over tokens of |kept - computed| / |computed|, the lengths of vectors."""
    nearest_id: int
    """The layer id whose computed states are nearest: this one, if all is well."""
    nearest_difference: float


class StatesCheck(Frozen):
    """A few rows compared."""

    layers: tuple[LayerStates, ...]
    """Aux layers, then the final norm's input."""
    num_tokens: int
    tolerance: float

    @property
    def is_same(self) -> bool:
        """Whether every layer fits."""
        return all(layer.difference <= self.tolerance for layer in self.layers)

    @property
    def shift(self) -> int | None:
        """By how much all aux ids are off, when another convention explains it; else None."""
        aux = self.layers[:-1]
        shifts = {layer.nearest_id - layer.layer_id for layer in aux}
        fits = all(layer.nearest_difference <= self.tolerance for layer in aux)
        return shifts.pop() if len(shifts) == 1 and fits else None


def check_states(
    rows: Sequence[Row],
    verifier: VerifierFacts,
    aux_layer_ids: Sequence[int],
    *,
    dtype: str,
    num_tokens: int = _DEFAULT_TOKENS,
) -> StatesCheck:
    """Compares the first rows' states with those of the verifier, each with its layer's neighbours.

    Args:
        rows: With the states that are kept.
        verifier: Who should have made them.
        aux_layer_ids: What the states are said to be, in their order.
        dtype: They were computed in.
        num_tokens: So many tokens at least, if there are.

    Raises:
        VerifierError: The verifier does not load here, or overflows.
    """
    named = (*aux_layer_ids, verifier.num_layers)
    around = sorted(
        {i + by for i in aux_layer_ids for by in (-1, 0, 1) if 0 <= i + by < verifier.num_layers}
    )
    around.append(verifier.num_layers)
    chosen = _first(rows, num_tokens)
    kept = torch.cat([row.load_states() for row in chosen]).float()
    computed = torch.cat([row.load_states() for row in recapture(chosen, verifier, around[:-1])])
    layers = []
    for index, layer_id in enumerate(named):
        found = {
            i: _difference(kept[:, index], computed[:, at].float()) for at, i in enumerate(around)
        }
        nearest = min(found, key=lambda i: found[i])
        layers.append(
            LayerStates(
                layer_id=layer_id,
                difference=found[layer_id],
                nearest_id=nearest,
                nearest_difference=found[nearest],
            )
        )
    return StatesCheck(
        layers=tuple(layers),
        num_tokens=len(kept),
        tolerance=_MOST_DIFFERENCE.get(dtype, _MOST_DIFFERENCE["bfloat16"]),
    )


def recapture(
    rows: Sequence[Row],
    verifier: VerifierFacts,
    aux_layer_ids: Sequence[int],
    *,
    dtype: str = "float32",
) -> list[Row]:
    """The same rows with the states that this verifier has at these layers, in memory.

    Raises:
        VerifierError: The verifier does not load here, or overflows.
    """
    ids = (*aux_layer_ids, verifier.num_layers)
    capture = LayerCapture.load(verifier.path, ids, verifier.num_layers, dtype)
    found = []
    for row in rows:
        known = row.token_ids[: row.num_entries + 1]
        found.append(row._replace(load_states=_Held(capture.run([known])[0])))
    return found


class _Held:
    """States that are in memory."""

    def __init__(self, states: Tensor) -> None:
        self._states = states

    def __call__(self) -> Tensor:
        return self._states


def _first(rows: Sequence[Row], num_tokens: int) -> list[Row]:
    """The first rows that a pass of the verifier can hold, of so many tokens together."""
    chosen: list[Row] = []
    fitting = [row for row in rows if row.num_entries < default_batch_tokens()] or list(rows[:1])
    for row in fitting:
        if sum(one.num_entries for one in chosen) >= num_tokens:
            break
        chosen.append(row)
    return chosen


def _difference(kept: Tensor, computed: Tensor) -> float:
    """The median, since a few tokens of a sequence can have states a thousand times longer."""
    length = computed.norm(dim=-1).clamp_min(_MIN_NORM)
    return float(((kept - computed).norm(dim=-1) / length).median())
