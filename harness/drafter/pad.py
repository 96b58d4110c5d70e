"""Verifiers with extra layers that change nothing: a known acceptance at a higher cost of a step.

A layer adds to the residual stream what its attention's and its MLP's output projections give.
Where both are zero it adds nothing, and is computed all the same. So a padded verifier gives the
outputs of the plain one at the cost of a deeper one, and says in its config that it is synthetic.
"""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.environment import SYNTHETIC_KEY
from harness.config.load import Frozen
from harness.drafter.drafter import Drafter
from harness.drafter.fields import Fields
from harness.drafter.tensors import TensorHeader, read_folder_headers, read_json_object
from harness.drafter.verifier import Verifier, text_fields
from harness.drafter.writer import Source, Stored, write_drafter
from harness.errors import CheckError, ConfigError

_OUTPUTS = ("self_attn.o_proj", "mlp.down_proj")
"""What a layer adds to the residual stream, as Llama, Qwen, Mistral and Gemma call it."""
_ZEROS = {"F32": "float32", "F16": "float16", "BF16": "uint16"}
_EMBED = "embed_tokens.weight"
_MOST_LAYERS = 10_000
_COPIED = ("*.jinja", "*.model", "merges.txt", "generation_config.json", "special_tokens_map.json")
_TOKENIZER = ("tok*.json", "vocab.json", "tekken.json", "chat_template.json")


class Padded(Frozen):
    """A padded verifier that was written."""

    path: Path
    num_real_layers: int
    num_added_layers: int
    of_digest: str


class _Layers(NamedTuple):
    prefix: str
    """Of every layer's tensors: `model.layers.`."""
    last: dict[str, TensorHeader]
    """The last layer's tensors by their name inside the layer."""


def pad_verifier(verifier: Verifier, num_layers: int, out_dir: Path, *, digest: str) -> Padded:
    """Writes a verifier with `num_layers` more layers, copies of its last one, without effect.

    They come after the real ones, so layers that a drafter names by number stay the same states.

    Args:
        verifier: The plain one.
        num_layers: Layers to add.
        out_dir: A new or empty folder.
        digest: The plain verifier's root digest, which the config of the new one names.

    Raises:
        ConfigError: No sensible number, a folder that is not empty.
        CheckError: A verifier whose layers are not known well enough: quantised, already padded,
            or with other output projections than `self_attn.o_proj` and `mlp.down_proj`.
        PrerequisiteError: The disk is too full.
    """
    if not 1 <= num_layers <= _MOST_LAYERS:
        raise ConfigError(f"layers: expected 1 to {_MOST_LAYERS}, found {num_layers}")
    document = read_json_object(verifier.path / "config.json")
    _require_plain(verifier, document)
    headers = read_folder_headers(verifier.path)
    tensors: dict[str, Source] = {
        name: Stored(verifier.path, header) for name, header in headers.items()
    }
    layers = _find_layers(verifier, headers)
    for index in range(verifier.num_layers, verifier.num_layers + num_layers):
        for name, header in layers.last.items():
            tensors[f"{layers.prefix}{index}.{name}"] = _without_effect(verifier, name, header)
    padded = Padded(
        path=out_dir,
        num_real_layers=verifier.num_layers,
        num_added_layers=num_layers,
        of_digest=digest,
    )
    write_drafter(out_dir, _config(document, padded), tensors, _other_files(verifier.path))
    return padded


def require_named_layers(drafter: Drafter, verifier: Verifier) -> None:
    """Refuses a drafter on a padded verifier that leaves its auxiliary layers to vLLM.

    vLLM would choose them by the number of layers (models/interfaces.py, 0.32): other states than
    those that the drafter was trained on.

    Raises:
        CheckError: It does.
    """
    if verifier.is_synthetic and drafter.aux_layer_ids is None:
        raise CheckError(
            f"{drafter.path}: expected auxiliary layers by number, found none: on a padded "
            "verifier vLLM would take other ones",
            "name them in the drafter's config.json as eagle_aux_hidden_state_layer_ids",
        )


def _require_plain(verifier: Verifier, document: dict[str, Any]) -> None:
    found = [key for key in ("quantization_config", SYNTHETIC_KEY) if document.get(key)]
    found += [key for key in ("quantization_config",) if _text(document).get(key)]
    if found:
        raise CheckError(
            f"{verifier.path}: expected a plain, unquantised verifier, found {found[0]} in its "
            "config.json",
            "pad the verifier that it was made of",
        )


def _find_layers(verifier: Verifier, headers: dict[str, TensorHeader]) -> _Layers:
    """The last layer's tensors; every layer must have the output projections that we know."""
    embed = verifier.embed_key or ""
    prefix = embed.removesuffix(_EMBED) + "layers."
    for index in range(verifier.num_layers):
        for name in (f"{prefix}{index}.{output}.weight" for output in _OUTPUTS):
            if not embed.endswith(_EMBED) or name not in headers:
                raise CheckError(
                    f"{verifier.path}: expected a tensor {name}, found none: these layers "
                    "({}) cannot be padded".format(", ".join(verifier.architectures)),
                    "give a dense verifier of the Llama kind",
                )
    start = f"{prefix}{verifier.num_layers - 1}."
    last = {name.removeprefix(start): h for name, h in headers.items() if name.startswith(start)}
    return _Layers(prefix, last)


def _without_effect(verifier: Verifier, name: str, header: TensorHeader) -> Source:
    if not name.startswith(_OUTPUTS):
        return Stored(verifier.path, header)
    if header.dtype not in _ZEROS:
        raise CheckError(f"{name}: expected {', '.join(_ZEROS)}, found {header.dtype}")
    return np.zeros(header.shape, dtype=_ZEROS[header.dtype])


def _config(document: dict[str, Any], padded: Padded) -> dict[str, Any]:
    """The config with more layers, lists of one entry a layer lengthened, and the label."""
    document = copy.deepcopy(document)
    text = _text(document)
    for key, value in text.items():
        if isinstance(value, list) and len(value) == padded.num_real_layers:
            text[key] = value + value[-1:] * padded.num_added_layers
    text["num_hidden_layers"] = padded.num_real_layers + padded.num_added_layers
    label = padded.model_dump(exclude={"path"})
    return document | {SYNTHETIC_KEY: {"kind": "padded", **label}}


def _text(document: dict[str, Any]) -> dict[str, Any]:
    return text_fields(Fields("config.json", document)).document


def _other_files(folder: Path) -> list[Path]:
    return sorted({p for pattern in (*_COPIED, *_TOKENIZER) for p in folder.glob(pattern)})
