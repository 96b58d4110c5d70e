"""Takes secrets out of what is shown or kept: params, tags, logs, artifacts, messages, addresses.

Two nets. By form: a password in an address, the value after a word that is called a secret. By
value: whatever this process was given as a secret, wherever it turns up.
"""

import re

from harness.settings import SECRET_NAME, secret_values

_HIDDEN = "***"
_LOGIN = re.compile(r"(://[^/:@\s]*:)[^/@\s]+(?=@)")
_QUERY = re.compile(r"([?&][\w.\-]*(?:passw|token|secret|key)[\w.\-]*=)[^&\s]+", re.IGNORECASE)
_ADDRESS = re.compile(r"://[^\s\"'<>`]+")
"""Only there is `&key=` a query: in the script of a figure it is a part of the program."""
_TEXT_PROBE_BYTES = 4096


def redacted(text: str) -> str:
    """The text with *** for each password in an address, and for each secret of this process."""
    if "://" in text:
        text = _LOGIN.sub(rf"\g<1>{_HIDDEN}", text)
        text = _ADDRESS.sub(lambda found: _QUERY.sub(rf"\g<1>{_HIDDEN}", found[0]), text)
    for value in secret_values():
        text = text.replace(value, _HIDDEN)
    return text


def redacted_bytes(raw: bytes) -> bytes:
    """A file's content in the same way; one that is no text is left as it is."""
    if b"\0" in raw[:_TEXT_PROBE_BYTES]:
        return raw
    return redacted(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def redacted_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command line without its secrets: values of `--*-token`-like flags and `*_KEY=` words."""
    clean: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_secret = bool(SECRET_NAME.search(name)) and (word.startswith("-") or bool(equals))
        if hide_next:
            clean.append(_HIDDEN)
        elif is_secret and equals:
            clean.append(f"{name}={_HIDDEN}")
        else:
            clean.append(redacted(word))
        hide_next = is_secret and not equals and not hide_next
    return tuple(clean)
