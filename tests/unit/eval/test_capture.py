import pytest
import torch

from eval.capture import LayerCapture
from eval.errors import MemoryShortError, VerifierError


class Decoder(torch.nn.Module):
    """Two layers and a norm; more than `most` tokens need memory that no machine has."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.norm = torch.nn.LayerNorm(4)
        self.most = most

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        if input_ids.numel() > self.most:
            torch.empty(10**15)
        states = self.embed(input_ids)
        for layer in self.layers:
            states = layer(states)
        result: torch.Tensor = self.norm(states)
        return result


def test_a_pass_that_memory_cannot_hold_is_told_apart_and_smaller_ones_go_on() -> None:
    capture = LayerCapture(Decoder(most=12), (0, 1, 2), 2)
    with pytest.raises(MemoryShortError, match=r"2 rows of up to 8 tokens needs more memory"):
        capture.run([[1] * 8, [2] * 5])
    (states,) = capture.run([[1] * 8])
    assert states.shape == (8, 3, 4)


def test_any_other_failure_of_a_pass_is_not_taken_for_it() -> None:
    decoder = Decoder(most=12)
    with torch.no_grad():
        decoder.layers[1].weight[0, 0] = float("inf")
    with pytest.raises(VerifierError, match="NaN or infinity at layer 2"):
        LayerCapture(decoder, (0, 1, 2), 2).run([[1, 2]])
    with pytest.raises(IndexError):
        LayerCapture(decoder, (0,), 2).run([[99]])
