"""The three parts of a verifier that a replay needs: input embedding, final norm, output head.

They are read alone, so that a verifier of a terabyte costs no more than its vocabulary.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import linear, rms_norm

from eval.architecture import read_slots
from eval.errors import SpecError
from eval.facts import VerifierFacts


class VerifierParts(NamedTuple):
    """What the drafter shares, and what turns the last hidden state into tokens."""

    embed_VD: Tensor
    head_VD: Tensor
    norm_D: Tensor
    rms_norm_eps: float

    @classmethod
    def load(cls, facts: VerifierFacts, dtype: torch.dtype, device: str = "cpu") -> "VerifierParts":
        """Reads three tensors.

        Raises:
            SpecError: One of them is missing.
        """
        keys = (facts.embed_key, facts.head_key, facts.norm_key)
        found = _read(facts.path, set(keys))
        embed, head, norm = (found[key].to(device, dtype) for key in keys)
        return cls(embed, head, norm, facts.rms_norm_eps)

    def among(self, ids_R: Tensor) -> "VerifierParts":
        """The same with a head of these tokens alone: what it predicts is an index into them."""
        return self._replace(head_VD=self.head_VD[ids_R.to(self.head_VD.device)])

    def scores(self, last_TD: Tensor) -> Tensor:
        """The score of every token of the head after each state.

        Args:
            last_TD: The final norm's input, of any leading dimensions.
        """
        states = last_TD.to(self.norm_D.device, self.norm_D.dtype)
        normed = rms_norm(states, self.norm_D.shape, self.norm_D, self.rms_norm_eps)
        return linear(normed, self.head_VD)

    def predict(self, last_TD: Tensor) -> Tensor:
        """The token of the greatest score after each state."""
        return self.scores(last_TD).argmax(-1)


def _read(folder: Path, keys: set[str]) -> dict[str, Tensor]:
    slots = read_slots(folder)
    if missing := sorted(keys - slots.keys()):
        raise SpecError(
            f"verifier {folder}: expected the tensors {', '.join(sorted(keys))}, found no "
            f"{', '.join(missing)}",
            "a replay reads the verifier's embedding, head and final norm",
        )
    found = {}
    for key in keys:
        with safe_open(slots[key].path, "pt") as stream:
            found[key] = stream.get_tensor(key)
    return found
