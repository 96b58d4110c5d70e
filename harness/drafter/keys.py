"""Names of a drafter's tensors in every spelling, and the plain one that this code thinks in.

Plain is speculators' own: `layers.0.self_attn.q_proj.weight`, no `model.` in front. Flat drafters
call the first layer `midlayer`; vLLM takes both, and refuses a `model.` in front.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_LAYER = re.compile(r"^((?:model\.)?(?:midlayer\.|layers\.\d+\.))")


class KeyMap(NamedTuple):
    """A renaming from stored to plain names, and the rules that it applied."""

    names: dict[str, str]
    rules: tuple[str, ...]


def plain_name(key: str) -> str:
    """The plain spelling of a stored tensor name."""
    name = key.removeprefix("model.")
    if name.startswith("midlayer."):
        name = "layers.0." + name.removeprefix("midlayer.")
    return name


def flat_name(name: str) -> str:
    """The flat spelling (`midlayer.`) of a plain name."""
    if name.startswith("layers.0."):
        return "midlayer." + name.removeprefix("layers.0.")
    return name


def map_keys(keys: Iterable[str]) -> KeyMap:
    """Stored name -> plain name for all keys, with the rules used (for provenance)."""
    names = {key: plain_name(key) for key in keys}
    rules = []
    if any(key.startswith("model.") for key in names):
        rules.append("model. -> ")
    if any("midlayer." in key for key in names):
        rules.append("midlayer. -> layers.0.")
    return KeyMap(names, tuple(rules))


def find_layer_prefix(keys: Iterable[str]) -> str:
    """How the first layer's tensors begin; `layers.0.` where there are none."""
    prefixes = sorted({match[1] for key in keys if (match := _LAYER.match(key))})
    first = [p for p in prefixes if "midlayer." in p or p.endswith("layers.0.")]
    return (first or prefixes or ["layers.0."])[0]
