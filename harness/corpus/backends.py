"""Who computes hidden states: transformers in this process, or a vLLM that is started for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.corpus.extractplan import ExtractConfig
from harness.drafter.verifier import Verifier

if TYPE_CHECKING:
    import torch

_SHARE = 0.5
"""Of the free memory that one pass may be expected to take."""
_LAYER_COPIES = 16
"""Activations of a layer that live at once, in units of hidden size, beside the MLP's."""


class Backend(Protocol):
    """A verifier that is loaded."""

    def run(self, rows: Sequence[Sequence[int]]) -> Sequence["torch.Tensor"]:
        """States of each row, [tokens, captured layers + 1, hidden size], on the CPU.

        Raises:
            MemoryShortError: The rows together are more than fits.
        """

    def estimate_batch_tokens(self, verifier: Verifier) -> int:
        """Tokens of a pass that should fit, and that suit the device."""


@contextmanager
def open_backend(
    verifier: Verifier, layer_ids: tuple[int, ...], config: ExtractConfig, log_path: Path
) -> Iterator[Backend]:
    """Loads the verifier; it is gone when the block ends.

    Args:
        verifier: Whose states.
        layer_ids: Captured layers, the number of layers itself standing for the final norm's input.
        config: Backend and dtype.
        log_path: Where a server's output goes.

    Raises:
        VerifierError: transformers cannot load it.
        ServerStartError: vLLM did not start, or died.
    """
    # torch and transformers take seconds; a finished stage needs neither.
    if config.backend == "vllm":
        from harness.corpus.servedstates import serve_states  # noqa: PLC0415

        with serve_states(verifier, layer_ids, config, log_path) as served:
            yield served
        return
    yield _InProcess(verifier, layer_ids, config)


class _InProcess:
    """transformers, on the GPU where there is one."""

    def __init__(
        self, verifier: Verifier, layer_ids: tuple[int, ...], config: ExtractConfig
    ) -> None:
        from eval.capture import LayerCapture, default_device  # noqa: PLC0415

        dtype: str = config.dtype
        if dtype == "fp8":
            dtype = "float32" if default_device() == "cpu" else "bfloat16"
        self._num_states = len(layer_ids)
        self._item_bytes = 4 if dtype == "float32" else 2
        self._capture = LayerCapture.load(
            verifier.path, layer_ids, verifier.num_layers, dtype, device_map=config.device_map
        )

    def run(self, rows: Sequence[Sequence[int]]) -> Sequence["torch.Tensor"]:
        return self._capture.run(rows)

    def estimate_batch_tokens(self, verifier: Verifier) -> int:
        from eval.capture import default_batch_tokens, free_memory_bytes  # noqa: PLC0415

        hidden = verifier.hidden_size
        width = verifier.intermediate_size or 4 * hidden
        values = 2 * self._num_states * hidden + _LAYER_COPIES * hidden + 4 * width
        fitting = int(_SHARE * free_memory_bytes() / (values * self._item_bytes))
        return max(1, min(default_batch_tokens(), fitting))
