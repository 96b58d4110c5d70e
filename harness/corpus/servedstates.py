"""Hidden states from a vLLM that is started for it: verifiers that one GPU or process cannot hold.

vLLM writes each request's states to a file (`extract_hidden_states` and a connector); they are
read, held against what was asked, and deleted. Stages never keep vLLM's own files.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hs_connectors import FileTransfer

from eval.compat import SOURCE_DIR
from eval.device import detect_device, resolve_server
from eval.errors import RequestError, VerifierError
from eval.server import VllmServer
from eval.spec import ServerSpec
from harness.corpus.backends import arithmetic_dtype
from harness.corpus.extractplan import ExtractConfig
from harness.drafter.verifier import Verifier

FOLDER_NAME = ".served"
"""In the stage's folder, while the server runs."""
_BATCH_TOKENS = {"cpu": 2048, "cuda": 65536}
"""Tokens asked for at once; vLLM batches them as it likes and never runs out of memory for it."""
_MAX_NUM_SEQS = {"cpu": 8, "cuda": 256}
_TIMEOUT_S = 1800.0
_STATES_SHARE = 3
"""KV cache of a CPU engine over what its requests need alone: vLLM pads the pages of the states'
cache to those of the attention layers."""


class ServedStates:
    """A running server that gives hidden states; see `harness.corpus.backends.Backend`."""

    def __init__(self, server: VllmServer, folder: Path, num_states: int, hidden_size: int) -> None:
        self.server = server
        self._transfer = FileTransfer(folder)
        self._shape = (num_states, hidden_size)

    def run(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """States of each row, asked for all at once.

        Raises:
            ServerStartError: The server is gone.
            RequestError: It refused a row.
            VerifierError: States that are not finite, or of other tokens or layers.
        """
        with ThreadPoolExecutor(min(len(rows), _MAX_NUM_SEQS[detect_device()])) as askers:
            return list(askers.map(self._ask, rows))

    def estimate_batch_tokens(self, verifier: Verifier) -> int:  # noqa: ARG002 - as other backends
        """Tokens in flight that keep the engine busy."""
        return _BATCH_TOKENS[detect_device()]

    def _ask(self, row: Sequence[int]) -> torch.Tensor:
        body = {
            "model": self.server.model,
            "prompt": list(row),
            "max_tokens": 1,
            "temperature": 0.0,
        }
        answer = json.loads(self.server.fetch("/v1/completions", body, _TIMEOUT_S))
        params: dict[str, Any] = answer.get("kv_transfer_params") or {}
        found = self._transfer.get_generated(params) if params else None
        if found is None:
            raise RequestError(
                f"expected hidden states of {len(row)} tokens, found none in the answer",
                "this vLLM lacks the speculation method extract_hidden_states: 0.32 has it",
            )
        self._transfer.delete(params["hidden_states_path"])
        states: torch.Tensor = found["hidden_states"]
        _require_sound(states, found["token_ids"], row, self._shape)
        return states


@contextmanager
def serve_states(
    verifier: Verifier,
    layer_ids: tuple[int, ...],
    config: ExtractConfig,
    log_path: Path,
    port: int | None = None,
) -> Iterator[ServedStates]:
    """Starts vLLM with the verifier; it and its files are gone when the block ends.

    Args:
        verifier: Whose states.
        layer_ids: Captured layers, the number of layers itself standing for the final norm's input.
        config: Its dtype, tensor parallel size and trust in remote code.
        log_path: Where the server's output goes.
        port: Of the server; None: a free one.

    Raises:
        ServerStartError: It did not start, or died.
    """
    folder = (log_path.parent / FOLDER_NAME).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spec = build_server_spec(verifier, config, folder).model_copy(update={"port": port})
    method = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layer_ids)}},
    }
    try:
        with VllmServer(spec, log_path, speculative_config=method) as server:
            yield ServedStates(server, folder, len(layer_ids), verifier.hidden_size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_server_spec(verifier: Verifier, config: ExtractConfig, folder: Path) -> ServerSpec:
    """The server; it makes one token a request, so a row may be one shorter than its context."""
    device = detect_device()
    connector: dict[str, Any] = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    if device == "cpu":
        connector |= {
            "kv_connector": "CpuHiddenStatesConnector",
            "kv_connector_module_path": "eval.hsconnector",
        }
    spec = ServerSpec(
        verifier=verifier.path,
        dtype=arithmetic_dtype(config.dtype, device),
        max_model_len=config.max_model_len,
        max_num_seqs=_MAX_NUM_SEQS[device],
        tensor_parallel_size=config.tensor_parallel_size,
        data_parallel_size=config.data_parallel_size,
        enable_expert_parallel=config.enable_expert_parallel,
        trust_remote_code=config.trust_remote_code,
        extra_args=("--kv-transfer-config", json.dumps(connector)),
        env={"PYTHONPATH": str(SOURCE_DIR)},
        start_timeout_s=3600.0,
    )
    resolved = resolve_server(spec)
    if resolved.kv_cache_bytes is None:
        return resolved
    return resolved.model_copy(update={"kv_cache_bytes": _STATES_SHARE * resolved.kv_cache_bytes})


def _require_sound(
    states: torch.Tensor, token_ids: torch.Tensor, row: Sequence[int], shape: tuple[int, int]
) -> None:
    if tuple(states.shape) != (len(row), *shape) or token_ids.tolist() != list(row):
        raise VerifierError(
            f"expected hidden states [{len(row)}, {shape[0]}, {shape[1]}] of the row's tokens, "
            f"found {list(states.shape)} of {len(token_ids)} tokens",
            "vLLM gave the states of another request or of other layers: see its log",
        )
    if not bool(torch.isfinite(states).all()):
        raise VerifierError(
            "expected finite hidden states, found NaN or infinity",
            "the verifier overflows in this dtype: extract in bfloat16 or float32; where it does "
            "so in these too, its weights are damaged",
        )
