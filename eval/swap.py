"""Runs inside vLLM's workers: changes the drafter of a live engine, or refuses to.

Given to the server as `--worker-extension-cls eval.swap.DrafterSwap`; called once in every worker.
The engine must be idle. Nothing is written before every check has passed; if writing fails all the
same, the reply says so and the engine must not be used again.
"""

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from eval.architecture import combine_digests, find_differences, read_slots


class DrafterSwap:
    """Becomes a base of vLLM's worker class, whatever runner it has; hence the long names.

    Source of the way of loading: vLLM 0.32 model_executor/model_loader/reload, which copies into
    the storages that captured graphs refer to.
    """

    def drafter_swap_load(self, path: str) -> dict[str, Any]:
        """Loads the drafter in `path` in place of the one that is served.

        Returns:
            rank, tensors_sha256 of what was read, names read back and found equal, seconds, and
            `broken`: None, or why this engine must be thrown away.

        Raises:
            ValueError: It is another architecture, has values that are not finite, or brings an
                embedding or head other than the verifier's where the engine shares these.
        """
        worker: Any = self
        started = time.perf_counter()
        draft, verifier = worker.get_draft_model(), worker.get_model()
        if draft is None:
            raise ValueError("this engine has no drafter to change")
        served = Path(worker.speculative_config.draft_model_config.model)
        if differences := find_differences(served, Path(path)):
            raise ValueError("another architecture: " + "; ".join(differences[:8]))
        tensors, digest = _read(Path(path))
        shared = _find_shared(draft, verifier)
        for name, (_, _, module) in shared.items():
            _require_same(name, module, tensors.pop(f"{name}.weight", None))
        broken = None
        try:
            _load(worker, draft, tensors, shared)
        except (RuntimeError, AssertionError, ValueError, KeyError) as error:
            broken = f"{type(error).__name__}: {error}"
        return {
            "rank": worker.rank,
            "tensors_sha256": digest,
            "read_back": [] if broken else _read_back(draft, tensors),
            "seconds": time.perf_counter() - started,
            "broken": broken,
        }


def _read(folder: Path) -> tuple[dict[str, torch.Tensor], str]:
    slots = read_slots(folder)
    tensors: dict[str, torch.Tensor] = {}
    digests: dict[str, str] = {}
    for path in sorted({slot.path for slot in slots.values()}):
        with safe_open(path, "pt", device="cpu") as stream:
            for name in stream.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = stream.get_tensor(name).contiguous()
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise ValueError(f"{name} of {folder} has values that are not finite")
                raw = tensor.reshape(-1).view(torch.uint8).numpy()
                digests[name] = hashlib.sha256(raw).hexdigest()
                tensors[name] = tensor
    return tensors, combine_digests({name: (slots[name], digests[name]) for name in slots})


def _find_shared(
    draft: nn.Module, verifier: nn.Module
) -> dict[str, tuple[nn.Module, str, nn.Module]]:
    """Modules of the drafter that are the verifier's own, by checkpoint name, with their place."""
    own = {id(module) for module in verifier.modules()}
    shared: dict[str, tuple[nn.Module, str, nn.Module]] = {}
    for path, parent in draft.named_modules():
        for attribute, child in parent.named_children():
            if id(child) in own and id(parent) not in own:
                name = f"{path}.{attribute}".removeprefix(".").removeprefix("model.")
                shared[name] = (parent, attribute, child)
    return shared


def _require_same(name: str, module: Any, new: torch.Tensor | None) -> None:
    if new is None:
        return
    held = module.weight
    if held.shape[0] < new.shape[0]:  # tensor parallel: this rank's rows of the vocabulary
        rows = module.shard_indices
        new = new[rows.org_vocab_start_index : rows.org_vocab_end_index]
    held = held[: new.shape[0]].cpu()
    if not torch.equal(held, new.to(held.dtype)):
        raise ValueError(
            f"{name} is the verifier's in this engine, and the new drafter's differs from it"
        )


def _load(
    worker: Any,
    draft: Any,
    tensors: dict[str, torch.Tensor],
    shared: dict[str, tuple[nn.Module, str, nn.Module]],
) -> None:
    # Shared modules are detached meanwhile, or the reload would put the verifier's weights on the
    # meta device and pack them a second time.
    for parent, attribute, _ in shared.values():
        delattr(parent, attribute)
    config = worker.speculative_config.draft_model_config
    try:
        with (
            set_current_vllm_config(worker.vllm_config),
            torch.inference_mode(mode=False),
            torch.no_grad(),
        ):
            initialize_layerwise_reload(draft)
            draft.load_weights(iter(tensors.items()))
            finalize_layerwise_reload(draft, config)
    finally:
        for parent, attribute, module in shared.values():
            setattr(parent, attribute, module)


def _read_back(draft: nn.Module, tensors: dict[str, torch.Tensor]) -> list[str]:
    """Names whose values can be read from the live model, each compared with what was loaded.

    Packed, fused and sharded weights cannot: their digest as read must do.
    """
    held = dict(draft.named_parameters())
    equal: list[str] = []
    for name, tensor in tensors.items():
        parameter = next((held[key] for key in _live_names(name) if key in held), None)
        if parameter is None or parameter.shape != tensor.shape:
            continue
        if not torch.equal(parameter.detach().cpu(), tensor.to(parameter.dtype)):
            raise ValueError(f"{name} is not in the engine what was loaded into it")
        equal.append(name)
    return equal


def _live_names(name: str) -> tuple[str, ...]:
    """Names under which vLLM holds a checkpoint tensor (models/llama_eagle3.py, 0.32)."""
    if "d2t" in name:
        return ("draft_id_to_target_id",)
    inner = name.replace("midlayer.", "layers.0.")
    return (inner, f"model.{inner}")
