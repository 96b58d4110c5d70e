"""Inside vLLM: hidden states written by a CPU engine, for which vLLM's own connector has no way.

vLLM 0.32's connector copies through a CUDA stream into pinned memory and takes the engine down with
it where there is none. Here the states are copied at once; locks, names and the thread that writes
are vLLM's.
"""

import fcntl
import os
from functools import partial
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as vllms


class CpuHiddenStatesConnector(vllms.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """vLLM's connector without CUDA: `kv_connector_module_path` is this module."""

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        states = vllms.extract_from_kv_cache(
            self._kv_cache, self._slots(pending.block_ids), pending.token_ids.shape[0]
        )
        tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids.clone()}
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)  # noqa: PTH103, PTH120 - vLLM's paths are texts
        done = _Done()
        future = self._executor.submit(
            self._write_tensors, tensors, done, pending.filename, self._lock(pending)
        )
        self._req_copy_events[pending.req_id] = done
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))

    def _slots(self, block_ids: list[int]) -> torch.Tensor:
        """Places of a request's tokens in the cache, block by block."""
        blocks = torch.tensor(block_ids, dtype=torch.long)[:, None] * self._block_size
        return (blocks + torch.arange(self._block_size)[None]).flatten()

    def _lock(self, pending: Any) -> int | None:
        """The lock that readers of the file wait for; made before, as a rule."""
        descriptor: int | None = self._lock_fds.pop(pending.req_id, None)
        if descriptor is None and self.use_lock:
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
            descriptor = os.open(f"{pending.filename}.lock", flags, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor


class _Done:
    """A CUDA event of a copy that is over."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """It is over."""
        return True
