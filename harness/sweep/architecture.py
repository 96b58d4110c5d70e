"""A name for everything that two drafters must share to be served by one engine in turn."""

from pathlib import Path

from eval.architecture import flat_config, read_slots
from harness.digests import digest_json

_CHARACTERS = 16


def architecture_of(folder: Path) -> str:
    """Equal for drafters of the same config and tensor shapes, whatever their values are.

    Raises:
        SpecError: The folder has no readable config.json or safetensors.
    """
    shapes = {name: list(slot.shape) for name, slot in read_slots(folder).items()}
    return digest_json([flat_config(folder), shapes])[:_CHARACTERS]
