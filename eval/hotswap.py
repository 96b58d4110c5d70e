"""Our end of a drafter change: how a server is made ready for it, and the request for one.

The other end runs in vLLM's workers: `eval.swap`.
"""

import json

from eval.architecture import digest_tensors, find_differences
from eval.errors import MeasurementError, RequestError, SwapRefusedError
from eval.server import VllmServer
from eval.spec import DrafterSpec, Frozen

SWAP_ARGS = ("--worker-extension-cls", "eval.swap.DrafterSwap")
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens `/collective_rpc`, which is remote control without a password: the server is bound to
127.0.0.1 for that reason."""

_TIMEOUT_S = 600.0


class SwapReply(Frozen):
    """What one worker did."""

    rank: int
    tensors_sha256: str
    read_back: tuple[str, ...]
    seconds: float
    broken: str | None


def swap_drafter(
    server: VllmServer, started_with: DrafterSpec, drafter: DrafterSpec
) -> tuple[SwapReply, ...]:
    """Changes the drafter of an idle server in place.

    Args:
        server: Started with `SWAP_ARGS` and `DEV_MODE`.
        started_with: The drafter that the server was started with; its architecture holds.
        drafter: The one to serve from now on.

    Returns:
        One reply a worker.

    Raises:
        SwapRefusedError: The engine cannot take it; it serves on with what it had, unless the
            message says that it is broken. A fresh engine is the way out in either case.
        MeasurementError: A worker read other bytes than this process did.
    """
    if differences := find_differences(started_with.path, drafter.path):
        shown = "; ".join(differences[:8])
        raise SwapRefusedError(f"{drafter.name} is of another architecture: {shown}")
    body = {"method": "drafter_swap_load", "args": [str(drafter.path)]}
    try:
        results = json.loads(server.fetch("/collective_rpc", body, _TIMEOUT_S))["results"]
    except RequestError as error:
        raise SwapRefusedError(f"{drafter.name} was refused by a worker: {error}") from error
    replies = tuple(SwapReply.model_validate(result) for result in results)
    if broken := [reply for reply in replies if reply.broken]:
        raise SwapRefusedError(
            f"{drafter.name} broke the engine in worker {broken[0].rank}: {broken[0].broken}"
        )
    expected = digest_tensors(drafter.path)
    for reply in replies:
        if reply.tensors_sha256 != expected:
            raise MeasurementError(
                f"worker {reply.rank} read other tensors from {drafter.path}: expected "
                f"{expected[:16]}, found {reply.tensors_sha256[:16]}",
                "the folder was changed meanwhile, or this worker's host sees another one",
            )
    if server.spec.has_prefix_cache:
        _reset_prefix_cache(server)
    return replies


def _reset_prefix_cache(server: VllmServer) -> None:
    """A cached prefix holds states of the drafter that was there before."""
    if not json.loads(server.fetch("/reset_prefix_cache", {})).get("success", True):
        raise MeasurementError("the prefix cache could not be reset: the engine was not idle")
