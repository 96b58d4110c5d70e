"""Typed reading of foreign JSON: a key has the right type, is absent, or is named in an error.

Null counts as absent, as transformers writes null for "not given".
"""

from typing import Any

from harness.drafter.tensors import UnreadableError

_MOST = 1 << 31
_MOST_NUMBER = 1e30
_FIX = "correct the value, or take the file from its source again"


class Fields:
    """A JSON object and where it stands, for errors such as `config.json: text_config.head_dim`."""

    def __init__(self, where: str, document: dict[str, Any]) -> None:
        self.where = where
        self.document = document

    def has(self, key: str) -> bool:
        """Whether the key is given and not null."""
        return self.document.get(key) is not None

    def count(self, key: str, most: int = _MOST) -> int | None:
        """A positive whole number, of a size that a model can have."""
        value = self.document.get(key)
        if value is None:
            return None
        if type(value) is not int or not 1 <= value <= most:
            raise self._wrong(key, f"a whole number from 1 to {most}", value)
        return value

    def need_count(self, key: str) -> int:
        """A positive whole number that must be there."""
        value = self.count(key)
        if value is None:
            raise self._wrong(key, "a positive whole number", "nothing")
        return value

    def number(self, key: str) -> float | None:
        """A real number; JSON as Python reads it has infinities, too."""
        value = self.document.get(key)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) < _MOST_NUMBER:
            raise self._wrong(key, "a finite number", value)
        return float(value)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.document.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str) -> str | None:
        """A string."""
        value = self.document.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; absent is empty."""
        value = self.document.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of strings", value)
        return value

    def counts(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers, zero included; an empty list counts as absent."""
        value = self.document.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
            raise self._wrong(key, "a list of whole numbers", value)
        return tuple(value)

    def nested(self, key: str) -> "Fields | None":
        """An object below this one."""
        value = self.document.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Fields(f"{self.where}: {key}", value)

    def dtype(self) -> str | None:
        """The stored dtype, under its new or its old name."""
        return self.text("dtype") or self.text("torch_dtype")

    def _wrong(self, key: str, expected: str, found: object) -> UnreadableError:
        text = found if found == "nothing" else repr(found)[:80]
        return UnreadableError(f"{self.where}: {key}", expected, str(text), _FIX)


def parse_rope(fields: Fields) -> dict[str, Any]:
    """Rotary parameters in one spelling, from `rope_parameters` or the older pair of keys.

    Returns:
        Keys of transformers 5 (`rope_theta`, `rope_type`, ...); empty where nothing is given.
        Parameters per layer type are reduced to those of one type, as the drafter has one rope.
    """
    given = fields.nested("rope_parameters")
    if given is not None:
        for kind in ("sliding_attention", "full_attention"):
            given = given.nested(kind) or given
        rope = {key: value for key, value in given.document.items() if key != "type"}
        theta = given.number("rope_theta") or fields.number("rope_theta")
    else:
        scaling = fields.nested("rope_scaling")
        rope = dict(scaling.document) if scaling else {}
        legacy_type = rope.pop("type", None)
        if legacy_type is not None:
            rope.setdefault("rope_type", legacy_type)
        theta = fields.number("rope_theta")
    if theta is not None:
        rope["rope_theta"] = theta
    if rope:
        rope.setdefault("rope_type", "default")
    return rope
