"""Single tokens as text, for people to read."""

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import AutoTokenizer

Pieces = Callable[[Sequence[int]], list[str]]
"""Token ids -> as many texts, which together are the text of all."""
_HALF = "\ufffd"
"""What a tokenizer gives for bytes that are no whole character."""


def load_pieces(folder: Path) -> Pieces | None:
    """The texts of single tokens by the tokenizer of a folder; None where none can be loaded."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return lambda ids: split_text(tokenizer.decode, ids)


def split_text(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """Token by token what each adds to the text.

    A character of several tokens is shown with its last one.
    """
    shown, pieces = "", []
    for end in range(1, len(ids) + 1):
        text = decode(list(ids[:end]))
        if text.endswith(_HALF) and end < len(ids):
            pieces.append("")
            continue
        pieces.append(text[len(shown) :])
        shown = text
    return pieces
