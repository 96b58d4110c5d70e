"""The verifier's layer inputs for batches of token ids, by a plain forward pass of transformers.

Layer id i is the input of decoder layer i; the id `num_layers` is what enters the final norm. That
is what vLLM's extract_hidden_states gives. No logits are computed. Imports torch and transformers:
import this module only where a model is really run.
Shapes: B rows, T tokens of the longest row, L captured ids, D hidden size.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from transformers import AutoModel

from eval.device import DEFAULT_BATCH_TOKENS
from eval.errors import MemoryShortError, SpecError, VerifierError
from eval.textmodel import load_text_model


def default_batch_tokens() -> int:
    """Tokens per forward pass that suit the device at hand."""
    return DEFAULT_BATCH_TOKENS[default_device()]


class LayerCapture:
    """A verifier that gives layer inputs instead of tokens."""

    def __init__(self, model: torch.nn.Module, layer_ids: Sequence[int], num_layers: int) -> None:
        self._model = model.eval()
        self._layer_ids = tuple(layer_ids)
        self._caught: dict[int, torch.Tensor] = {}
        layers, norm = _find_decoder(model, num_layers)
        for layer_id in self._layer_ids:
            module = norm if layer_id == num_layers else layers[layer_id]
            module.register_forward_pre_hook(self._catch(layer_id), with_kwargs=True)

    @classmethod
    def load(
        cls,
        path: Path,
        layer_ids: Sequence[int],
        num_layers: int,
        dtype: str,
        *,
        device_map: str | None = None,
    ) -> "LayerCapture":
        """Loads the decoder without its output head, on the GPU where there is one.

        Args:
            path: The verifier's folder.
            layer_ids: Layers whose inputs are caught, in the order of `run`'s result.
            num_layers: Of the verifier.
            dtype: Of weights and arithmetic, as torch calls it.
            device_map: How accelerate spreads it over several GPUs; None: it is on one.

        Raises:
            VerifierError: transformers cannot load it, or a weight is missing.
        """
        spread = {"device_map": device_map} if device_map else {}
        model = load_text_model(AutoModel, path, getattr(torch, dtype), **spread)
        placed = model if device_map else model.to(default_device())
        return cls(placed, layer_ids, num_layers)

    def run(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Layer inputs of each row: contiguous CPU tensors of shape [tokens, L, D].

        Rows are padded on the right. Attention is causal, so padding cannot reach what is kept and
        no mask is needed, which leaves attention on its fast path.

        Raises:
            MemoryShortError: The rows together need more memory than there is.
            VerifierError: A value is not finite.
        """
        try:
            return self._run(rows)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            self._caught.clear()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            shape = f"{len(rows)} rows of up to {max(map(len, rows))} tokens"
            raise MemoryShortError(
                f"a forward pass over {shape} needs more memory than there is",
                "fewer tokens a pass (--batch-tokens), shorter rows (data prepare --seq-length), "
                "a smaller dtype, or a device that holds them",
            ) from error

    def _run(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        lengths = [len(row) for row in rows]
        ids_BT = torch.zeros(len(rows), max(lengths), dtype=torch.long)
        for ids_T, row in zip(ids_BT, rows, strict=True):
            ids_T[: len(row)] = torch.tensor(row)
        self._caught.clear()
        device = next(self._model.parameters()).device
        with torch.inference_mode():
            self._model(input_ids=ids_BT.to(device), use_cache=False)
        # A verifier that is spread over GPUs has its layers' inputs on several of them.
        caught = [self._caught[i] for i in self._layer_ids]
        states_BTLD = torch.stack([states.to(caught[-1].device) for states in caught], dim=2)
        self._caught.clear()
        if not bool(torch.isfinite(torch.stack(torch.aminmax(states_BTLD))).all()):
            _raise_not_finite(states_BTLD, lengths, self._layer_ids)
        return [states[:length].cpu() for states, length in zip(states_BTLD, lengths, strict=True)]

    def _catch(self, layer_id: int) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001 - torch's signature
            self._caught[layer_id] = args[0] if args else kwargs["hidden_states"]

        return hook


def default_device() -> Literal["cpu", "cuda"]:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def free_memory_bytes() -> int:
    """Memory that the device at hand has left."""
    if default_device() == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return int(psutil.virtual_memory().available)


def _is_out_of_memory(error: Exception) -> bool:
    """A GPU's is torch's own class, a CPU's a RuntimeError of its allocator."""
    is_own = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return is_own or "can't allocate memory" in str(error)


def _find_decoder(
    model: torch.nn.Module, num_layers: int
) -> tuple[torch.nn.ModuleList, torch.nn.Module]:
    """The list of decoder layers and the norm after it, wherever a wrapper nests them."""
    for module in model.modules():
        layers, norm = getattr(module, "layers", None), getattr(module, "norm", None)
        is_list = isinstance(layers, torch.nn.ModuleList) and len(layers) == num_layers
        if is_list and isinstance(norm, torch.nn.Module):
            return layers, norm
    raise SpecError(
        f"expected a decoder with `layers` ({num_layers} of them) and `norm` in "
        f"{type(model).__name__}, found none",
        "this verifier's class keeps its decoder elsewhere: it needs support in capture.py",
    )


def _raise_not_finite(
    states: torch.Tensor, lengths: Sequence[int], layer_ids: Sequence[int]
) -> None:
    for index, length in enumerate(lengths):
        for position, layer_id in enumerate(layer_ids):
            if not bool(torch.isfinite(states[index, :length, position]).all()):
                raise VerifierError(
                    f"expected finite hidden states, found NaN or infinity at layer {layer_id}, "
                    f"in row {index} of the batch",
                    "the verifier overflows in this dtype: extract in bfloat16 or float32; where "
                    "it does so in these too, its weights are damaged",
                )
