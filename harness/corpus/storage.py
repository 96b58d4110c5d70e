"""How one row's hidden states lie in a file: names, shapes and dtypes, and what they take on disk.

The layout is that of speculators 0.9.0's offline reader; `fp8` is that of its FP8 connector: a
float8 tensor and one float32 scale a token.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from harness.errors import PrerequisiteError

if TYPE_CHECKING:
    import torch

StateDtype = Literal["float32", "bfloat16", "float16", "fp8"]
STATES, TOKEN_IDS, SCALES = "hidden_states", "token_ids", "hidden_states_scales"
_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "fp8": "F8_E4M3"}
"""As safetensors spells them."""
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_SCALE_BYTES, _ID_BYTES = 4, 8
_HEADER_BYTES = 256


class StoredTensor(NamedTuple):
    """One tensor of a file, as its header must say."""

    dtype: str
    shape: tuple[int, ...]


def expected_tensors(
    num_tokens: int, num_states: int, hidden_size: int, dtype: str
) -> dict[str, StoredTensor]:
    """The tensors of a row's file by name.

    Args:
        num_tokens: Of the row.
        num_states: Captured layers and the final norm's input.
        hidden_size: Of the verifier.
        dtype: A `StateDtype`.
    """
    found = {
        STATES: StoredTensor(_NAMES[dtype], (num_tokens, num_states, hidden_size)),
        TOKEN_IDS: StoredTensor("I64", (num_tokens,)),
    }
    if dtype == "fp8":
        found[SCALES] = StoredTensor("F32", (num_tokens, 1, 1))
    return found


def estimate_bytes(lengths: Sequence[int], num_layer_ids: int, hidden_size: int, dtype: str) -> int:
    """Bytes on disk of the hidden states of rows with these lengths."""
    per_token = num_layer_ids * hidden_size * _ITEM_BYTES[dtype] + _ID_BYTES
    per_token += _SCALE_BYTES if dtype == "fp8" else 0
    return sum(lengths) * per_token + len(lengths) * _HEADER_BYTES


def space_for(num_bytes: int) -> int:
    """What must be free for so many bytes: a twentieth more, and 64 MB for whatever else writes."""
    return num_bytes + num_bytes // 20 + 64_000_000


def require_space(folder: Path, num_bytes: int, what: str) -> None:
    """Refuses work that would fill the disk.

    Raises:
        PrerequisiteError: Names what is needed and what is free.
    """
    needed = space_for(num_bytes)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PrerequisiteError(
            f"expected {needed / 1e6:,.0f} MB free in {folder} for {what}, "
            f"found {free / 1e6:,.0f} MB",
            "free some space, or give --out on a larger disk",
        )


def encode(states: "torch.Tensor", token_ids: Sequence[int], dtype: str) -> bytes:
    """The file of one row.

    Args:
        states: [tokens, captured layers, hidden size], on the CPU.
        token_ids: Of the row.
        dtype: To store them in.
    """
    # Late: torch takes seconds, which checks of finished work need not wait for.
    import torch  # noqa: PLC0415
    from safetensors.torch import save  # noqa: PLC0415

    ids = torch.tensor(token_ids, dtype=torch.long)
    if dtype != "fp8":
        kept = states.to(getattr(torch, dtype)).contiguous()
        return bytes(save({STATES: kept, TOKEN_IDS: ids}))
    from hs_connectors.fp8_utils import quantize_tensor_to_fp8  # noqa: PLC0415

    small, scales = quantize_tensor_to_fp8(states)
    tensors = {STATES: small.contiguous(), SCALES: scales.contiguous(), TOKEN_IDS: ids}
    return bytes(save(tensors))


def decode(found: Mapping[str, "torch.Tensor"]) -> "torch.Tensor":
    """The hidden states of a file that was read, float8 back in float32."""
    states = found[STATES]
    if SCALES not in found:
        return states
    from hs_connectors.fp8_utils import dequantize_fp8_tensor  # noqa: PLC0415

    return dequantize_fp8_tensor(states, found[SCALES], states.new_zeros(0).float().dtype)
