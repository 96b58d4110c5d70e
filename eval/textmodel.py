"""A verifier's text model in torch, wherever a wrapper nests it, and with every weight of its own.

What transformers does not know as a whole (a wrapper around a vision tower, say) is loaded as the
text model that its config.json holds; the names of the wrapper are taken off its tensors. Imports
torch and transformers: seconds.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.utils import logging

from eval.architecture import read_slots
from eval.errors import VerifierError

_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
_EMBEDDING = "embed_tokens.weight"
_ALIASES = {"kimi_k2": "deepseek_v3"}
"""Model types of published code that transformers has under another name. Source: transformers
5.19, models/kimi_k25/configuration_kimi_k25.py."""
_UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError)


def load_text_model(kind: Any, path: Path, dtype: torch.dtype, **options: Any) -> torch.nn.Module:
    """The text model of a verifier's folder.

    Args:
        kind: Of transformers' Auto classes: AutoModel without output head, AutoModelForCausalLM.
        path: Its folder.
        dtype: Of the weights.
        options: More for `from_pretrained`, device_map for one.

    Raises:
        VerifierError: transformers cannot load it, or a weight is not in the files.
    """
    with _quiet():
        try:
            model, found = _load(kind, path, {"dtype": dtype, **options})
        except _UNREADABLE as error:
            raise unloadable(path, error) from error
    if missing := sorted(found["missing_keys"]):
        raise VerifierError(
            f"verifier {path}: expected all weights of a {type(model).__name__}, found none for "
            f"{', '.join(missing[:3])}{f' and {len(missing) - 3} more' if missing[3:] else ''}",
            "the folder is incomplete, or its tensors have names that transformers does not know",
        )
    loaded: torch.nn.Module = model.eval()
    return loaded


def unloadable(path: Path, error: Exception) -> VerifierError:
    """The failure of one of transformers' loaders, in a line."""
    return VerifierError(
        f"transformers cannot load the verifier {path}: {str(error).partition(chr(10))[0][:300]}",
        "the folder must hold config, weights and tokenizer of a model that this version of "
        "transformers knows, and the model must fit into memory",
    )


def _load(kind: Any, path: Path, options: dict[str, Any]) -> Any:
    """Model and loading report: as it stands if its class is known, else of what it wraps."""
    options = {**options, "output_loading_info": True}
    text = _text_document(path)
    try:
        return kind.from_pretrained(path, **options)
    except (ValueError, KeyError):
        if text is None:
            raise
    model_type = str(text.pop("model_type", ""))
    config = AutoConfig.for_model(_ALIASES.get(model_type, model_type), **text)
    return kind.from_pretrained(path, config=config, key_mapping=_key_mapping(path), **options)


def _text_document(path: Path) -> dict[str, Any] | None:
    """The innermost text config of a wrapper's; None where there is no wrapper."""
    document, found = json.loads((path / "config.json").read_text()), None
    while inner := next((document[key] for key in _TEXT_KEYS if key in document), None):
        document = found = inner
    return found


def _key_mapping(path: Path) -> dict[str, str]:
    """Takes the wrapper's part off the names, by where the embedding lies."""
    names = [name for name in read_slots(path) if name.endswith(_EMBEDDING)]
    names = [name for name in names if "vision" not in name and "visual" not in name]
    if not names:
        return {}
    before = min(names, key=len).removesuffix(_EMBEDDING)  # language_model.model.
    wrapper = re.sub(r"(?<![^.])model\.$", "", before)
    mapping = {rf"^{re.escape(before)}": "model."}
    return mapping | ({rf"^{re.escape(wrapper)}": ""} if wrapper not in {"", before} else {})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without bars, and without the report on tensors of towers that nobody wants."""
    before = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
