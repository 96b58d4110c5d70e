"""What a command line names on this machine, found without knowing the command.

A word or a value of a YAML that is a file or folder here is an input, and so is the checkpoint
behind a `run:` or `models:` reference. YAML files are looked through in turn. On the host an input
lies below `inputs/<digest>/`; one of the project folder is found there under the same name as here.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from harness.config.load import Frozen, read_yaml
from harness.digests import FolderDigest, digest_files
from harness.errors import ConfigError
from harness.redaction import redacted_words
from harness.settings import Settings

COMMANDS = ("train", "sweep", "bench", "replay", "verify", "data")
INPUTS_DIR = "inputs"
_YAML = {".yaml", ".yml"}
_PACKAGE = "package:"
_STORED = ("run:", "models:")
_PATH_KEYS = {
    "verifier", "corpus", "finetune_from", "draft_vocab", "eval_prompts", "prompts", "train",
    "bench", "drafter", "drafters",
}  # fmt: skip
"""Keys of our YAML that name a place, so that a bare word may be one."""

ResolveFn = Callable[[str], Path]


class Input(Frozen):
    """A file or folder that is to lie on the host, too."""

    source: Path
    digest: FolderDigest

    @property
    def place(self) -> str:
        """Where it lies below the host's root."""
        return f"{INPUTS_DIR}/{self.digest.root[:16]}/{self.source.name}"


class Cargo(Frozen):
    """Everything that a command names, and the command as it is to run on the host."""

    arguments: tuple[str, ...]
    documents: dict[str, str]
    """YAML by its path below the job's folder."""
    links: dict[str, str]
    """Path below the job's folder -> place below the host's root."""
    inputs: tuple[Input, ...]
    packages: tuple[str, ...]
    """Distributions that `package:` references name."""

    @property
    def num_bytes(self) -> int:
        """Size of all inputs."""
        return sum(item.digest.num_bytes for item in self.inputs)


def gather(arguments: tuple[str, ...], settings: Settings, resolve: ResolveFn) -> Cargo:
    """Finds what a command names.

    Args:
        arguments: After `harness`.
        settings: Relative names start at its project folder.
        resolve: The folder behind a reference into the store.

    Raises:
        ConfigError: The command does no work that could be done elsewhere, or names a secret.
    """
    if not arguments or arguments[0] not in COMMANDS:
        raise ConfigError(
            f"expected one of {', '.join(COMMANDS)} after --, found {' '.join(arguments[:1])!r}",
            "example: harness remote run HOST -- sweep sweep.yaml",
        )
    if redacted_words(arguments) != arguments:
        raise ConfigError(
            "expected no secret on the command line, found one: it would show in the host's list "
            "of processes",
            "set it as a variable here, and name the variable by --pass-env",
        )
    found = _Finder(settings, resolve)
    words = tuple(found.fit_word(word) for word in arguments)
    return Cargo(
        arguments=words,
        documents=found.documents,
        links=found.links,
        inputs=tuple(found.inputs.values()),
        packages=tuple(sorted(found.packages)),
    )


class _Finder:
    """Walks words and values; remembers what it met."""

    def __init__(self, settings: Settings, resolve: ResolveFn) -> None:
        self._root, self._resolve = settings.root_dir, resolve
        self.documents: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.inputs: dict[Path, Input] = {}
        self.packages: set[str] = set()

    def fit_word(self, word: str) -> str:
        """A word of the command line as it is to be on the host; `key=value` and `--key=value`."""
        key, equals, value = word.partition("=")
        if equals and not word.startswith("/"):
            return f"{key}={self._fit(value, is_path=key.lstrip('-') in _PATH_KEYS)}"
        return self._fit(word, is_path=False)

    def _fit(self, text: str, *, is_path: bool) -> str:
        if text.startswith(_PACKAGE):
            self.packages.add(text.removeprefix(_PACKAGE))
            return text
        if text.startswith(_STORED):
            return self._send(self._resolve(text)).place
        if not (is_path or os.sep in text or Path(text).suffix in _YAML):
            return text
        path = Path(text).expanduser()
        path = path if path.is_absolute() or path.exists() else self._root / text
        if not path.exists():
            return text
        return self._fit_path(path.absolute())

    def _fit_path(self, path: Path) -> str:
        """The path by which the host finds it, relative to the job's folder."""
        is_ours = path.is_relative_to(self._root)
        name = str(path.relative_to(self._root)) if is_ours else None
        if path.suffix in _YAML and path.is_file():
            return self._read(path, name or f"named/{len(self.documents)}/{path.name}")
        sent = self._send(path)
        if name is None:
            return sent.place
        self.links[name] = sent.place
        return name

    def _read(self, path: Path, name: str) -> str:
        if name not in self.documents:
            self.documents[name] = ""  # a file that names itself is read once
            document = self._fit_value(read_yaml(path), None)
            text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
            self.documents[name] = text
        return name

    def _fit_value(self, value: Any, key: str | None) -> Any:
        if isinstance(value, dict):
            return {k: self._fit_value(v, str(k).rpartition(".")[2]) for k, v in value.items()}
        if isinstance(value, list):
            return [self._fit_value(item, key) for item in value]
        return self._fit(value, is_path=key in _PATH_KEYS) if isinstance(value, str) else value

    def _send(self, path: Path) -> Input:
        if path not in self.inputs:
            self.inputs[path] = Input(source=path, digest=digest_path(path))
        return self.inputs[path]


def digest_path(path: Path) -> FolderDigest:
    """The digest of a file or a folder, wherever it lies."""
    return digest_files(path if path.is_dir() else path.parent, _file_names(path))


def _file_names(path: Path) -> Iterator[str]:
    """Files below a folder, links followed, as hub caches are made of them; or the file itself."""
    if path.is_file():
        yield path.name
        return
    for folder, _, files in os.walk(path, followlinks=True):
        for name in files:
            yield str((Path(folder) / name).relative_to(path))
