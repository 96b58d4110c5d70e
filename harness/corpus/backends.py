"""Who computes hidden states: transformers in this process, or a vLLM that is started for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from eval.device import DEFAULT_BATCH_TOKENS
from harness.corpus.extractplan import ExtractConfig
from harness.drafter.verifier import Verifier

if TYPE_CHECKING:
    import torch

_SHARE = 0.5
"""Of the free memory that one pass may be expected to take."""
_LAYER_COPIES = 16
"""Activations of a layer that live at once, in units of hidden size, beside the MLP's."""


_LIBRARIES = {"cpu": 520_000_000, "cuda": 1_200_000_000}
"""Resident before a weight is loaded: torch and transformers, measured; or the CUDA context."""
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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

        dtype = arithmetic_dtype(config.dtype, default_device())
        self._num_states = len(layer_ids)
        self._item_bytes = _ITEM_BYTES[dtype]
        self._capture = LayerCapture.load(
            verifier.path, layer_ids, verifier.num_layers, dtype, device_map=config.device_map
        )

    def run(self, rows: Sequence[Sequence[int]]) -> Sequence["torch.Tensor"]:
        return self._capture.run(rows)

    def estimate_batch_tokens(self, verifier: Verifier) -> int:
        from eval.capture import default_batch_tokens, free_memory_bytes  # noqa: PLC0415

        per_token = _values_per_token(verifier, self._num_states) * self._item_bytes
        fitting = int(_SHARE * free_memory_bytes() / per_token)
        return max(1, min(default_batch_tokens(), fitting))


def arithmetic_dtype(stored: str, device: str) -> str:
    """What a verifier computes in whose states are stored in a dtype."""
    if stored != "fp8":
        return stored
    return "float32" if device == "cpu" else "bfloat16"


def estimate_memory(verifier: Verifier, config: ExtractConfig, device: str) -> int:
    """Bytes that an extraction in this process takes: libraries, weights, one pass.

    Args:
        verifier: Whose states.
        config: What is captured.
        device: cpu or cuda.
    """
    item_bytes = _ITEM_BYTES[arithmetic_dtype(config.dtype, device)]
    stored = sum(path.stat().st_size for path in verifier.path.glob("*.safetensors"))
    weights = stored * item_bytes // _ITEM_BYTES.get(verifier.dtype or "float32", 4)
    num_states = len(config.aux_layer_ids or verifier.default_aux_layer_ids) + 1
    tokens = config.batch_tokens or DEFAULT_BATCH_TOKENS[device]
    return (
        _LIBRARIES[device] + weights + tokens * item_bytes * _values_per_token(verifier, num_states)
    )


def _values_per_token(verifier: Verifier, num_states: int) -> int:
    """Numbers that a pass holds at once for each of its tokens: states twice, one layer's own."""
    width = verifier.intermediate_size or 4 * verifier.hidden_size
    return (2 * num_states + _LAYER_COPIES) * verifier.hidden_size + 4 * width
