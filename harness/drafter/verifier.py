"""The verifier: the large model that accepts or rejects, read as data.

Facts come from config.json and safetensors headers; no class is looked up and no remote code runs,
so a model type that this machine's libraries do not know is read like any other.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval.environment import SYNTHETIC_KEY
from harness.config.load import Frozen
from harness.digests import FolderDigest, digest_files, digest_json, write_atomic
from harness.drafter import package
from harness.drafter.fields import Fields, parse_rope
from harness.drafter.hub import fetch_snapshot
from harness.drafter.tensors import (
    INDEX_NAME,
    TensorHeader,
    UnreadableError,
    read_file_headers,
    read_folder_headers,
    read_json_object,
    read_weight_map,
)
from harness.errors import CheckError, ConfigError
from harness.settings import Settings

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json", "tekken.json",
    "tokenizer_config.json",
)  # fmt: skip
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
_EMBED_SUFFIXES = ("embed_tokens.weight", "tok_embeddings.weight")
_HEAD_SUFFIXES = ("lm_head.weight", "output.weight")
_DIGESTED = ("*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt")


class Verifier(Frozen):
    """Facts of a verifier's text model; sizes are of that model, not of a vision tower."""

    reference: str
    path: Path
    revision: str | None
    digest: str | None
    """Root digest of the folder where its manifest has one; see `verifier_digest`."""
    architectures: tuple[str, ...]
    model_type: str
    hidden_size: int
    intermediate_size: int | None = None
    """Width of the dense MLP; None where every layer routes to experts."""
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int | None
    """As configured. None means not given: it is never derived."""
    vocab_size: int
    max_position_embeddings: int | None
    rms_norm_eps: float | None
    hidden_act: str | None = None
    rope_parameters: dict[str, Any]
    dtype: str | None
    embed_key: str | None
    lm_head_key: str | None
    """Tensor holding the output head; the embedding's where the two are tied."""
    is_tied: bool
    is_windowed: bool = False
    """Some of its layers attend to a window of the context only."""
    is_synthetic: bool = False
    """Made to cost more than it knows (`harness verifier pad`)."""

    @property
    def default_aux_layer_ids(self) -> tuple[int, int, int]:
        """Layers captured when nothing else is said. Source: vLLM 0.32, models/interfaces.py."""
        return (2, self.num_layers // 2, self.num_layers - 3)

    @classmethod
    def load(
        cls, reference: str, settings: Settings, *, is_config_enough: bool = False
    ) -> "Verifier":
        """Reads a verifier from a folder, `package:<distribution>` or `hf:<org>/<repo>[@rev]`.

        Args:
            reference: Which one.
            settings: Where packages are kept.
            is_config_enough: A folder with a config.json and no tokenizer will do.

        Raises:
            ConfigError: No such folder, or one without config or tokenizer, or with nonsense in it.
            PrerequisiteError: A hub model that is neither cached nor reachable, a missing package.
        """
        path, revision = _locate(reference, settings)
        try:
            if not is_config_enough:
                _require_tokenizer(path)
            return _read(reference, path, revision)
        except UnreadableError as error:
            message = f"verifier {reference}: {error.message}"
            raise ConfigError(message, error.hint) from error

    def header(self, key: str) -> TensorHeader:
        """Where one of its tensors lies; only that shard's header is read."""
        index_path = self.path / INDEX_NAME
        if not index_path.exists():
            return read_folder_headers(self.path)[key]
        return read_file_headers(self.path, read_weight_map(index_path)[key])[key]


def verifier_digest(verifier: Verifier, cache_dir: Path | None = None) -> str:
    """Root digest of a verifier's config, tokenizer and weights.

    Args:
        verifier: The verifier; where it has a manifest, its files must be what that says.
        cache_dir: Keeps the digest of a folder whose names, sizes and times have not changed, so
            that a large verifier is hashed once.

    Raises:
        CheckError: The files are not what the folder's manifest says.
    """
    path, recorded = verifier.path, _read_manifest(verifier.path)
    names = _recorded_names(path, recorded) if recorded else _digested_names(path)
    stats = [(n, (s := (verifier.path / n).stat()).st_size, s.st_mtime_ns) for n in names]
    key = digest_json([str(verifier.path.resolve()), stats])
    cached = cache_dir / "verifier-digests" / f"{key}.json" if cache_dir else None
    if cached and cached.is_file():
        root = str(json.loads(cached.read_text())["root"])
    else:
        root = digest_files(verifier.path, names).root
        if cached:
            write_atomic(cached, json.dumps({"root": root}))
    if recorded and recorded.root != root:
        raise CheckError(
            f"verifier {path}: expected files of digest {recorded.root} as its "
            f"{package.MANIFEST_NAME} says, found {root}: they were changed after it was written",
            f"delete {package.MANIFEST_NAME} if the change is meant, else restore the folder",
        )
    return root


def final_norm_key(verifier: Verifier) -> str:
    """Name of the final norm's weight, which lies beside the embedding.

    Raises:
        ConfigError: There is none.
    """
    norm = (verifier.embed_key or "").removesuffix(_EMBED_SUFFIXES[0]) + "norm.weight"
    try:
        verifier.header(norm)
    except KeyError as error:
        raise ConfigError(
            f"verifier: expected the final norm {norm} in {verifier.path}, found none"
        ) from error
    return norm


def _digested_names(path: Path) -> list[str]:
    found = {p.name for pattern in _DIGESTED for p in path.glob(pattern)}
    return sorted(found - {package.MANIFEST_NAME})


def _recorded_names(path: Path, recorded: FolderDigest) -> list[str]:
    """The files of the manifest; one that is gone is an error that names it."""
    names = [file.name for file in recorded.files]
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise CheckError(
            f"verifier {path}: expected {', '.join(missing)} as its {package.MANIFEST_NAME} says, "
            "found none",
            "restore the folder",
        )
    return names


def _locate(reference: str, settings: Settings) -> tuple[Path, str | None]:
    if not reference.strip():
        raise ConfigError(
            "verifier: expected a reference, found an empty one",
            "if it came from a shell variable, that variable is not set",
        )
    if reference.startswith("package:"):
        name = reference.removeprefix("package:")
        if not name:
            raise ConfigError("verifier: expected package:<distribution>, found no name after it")
        folder = package.materialise_package(name, settings.cache_dir)
        return folder, folder.name.removeprefix(f"{name}-")
    if reference.startswith("hf:"):
        snapshot = fetch_snapshot(reference.removeprefix("hf:"))
        return snapshot, snapshot.name
    path = Path(reference).expanduser()
    for candidate in (path, settings.root_dir / path):
        if candidate.is_dir():
            return candidate.resolve(), None
    raise ConfigError(
        f"verifier: expected a folder, package:<distribution> or hf:<org>/<repo>, "
        f"found {reference!r} ({path.absolute()} is no folder)",
        "check the path, or prefix a hub id with hf:",
    )


def _require_tokenizer(path: Path) -> None:
    read_json_object(path / "config.json")  # without which the folder is no verifier at all
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise UnreadableError(str(path), "a tokenizer", "none", "add tokenizer.json to the folder")


def _read(reference: str, path: Path, revision: str | None) -> Verifier:
    document = read_json_object(path / "config.json")
    top = Fields("config.json", document)
    text = text_fields(top)
    embed_key, head_key = _find_weights(path)
    is_tied = text.flag("tie_word_embeddings") or top.flag("tie_word_embeddings") or False
    heads = text.need_count("num_attention_heads")
    return Verifier(
        reference=reference,
        path=path,
        revision=revision,
        digest=recorded.root if (recorded := _read_manifest(path)) else None,
        architectures=tuple(top.texts("architectures")),
        model_type=text.text("model_type") or top.text("model_type") or "unknown",
        hidden_size=text.need_count("hidden_size"),
        intermediate_size=text.count("intermediate_size"),
        num_layers=text.need_count("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=text.count("num_key_value_heads") or heads,
        head_dim=text.count("head_dim"),
        vocab_size=text.count("vocab_size") or top.need_count("vocab_size"),
        max_position_embeddings=text.count("max_position_embeddings"),
        rms_norm_eps=text.number("rms_norm_eps"),
        hidden_act=text.text("hidden_act"),
        rope_parameters=parse_rope(text),
        dtype=text.dtype() or top.dtype(),
        embed_key=embed_key,
        lm_head_key=embed_key if is_tied or head_key is None else head_key,
        is_tied=is_tied or (embed_key is not None and head_key is None),
        is_windowed=_is_windowed(text),
        is_synthetic=top.has(SYNTHETIC_KEY),
    )


def _is_windowed(text: Fields) -> bool:
    kinds = text.texts("layer_types")
    if kinds:
        return any(kind != "full_attention" for kind in kinds)
    return text.has("sliding_window") and text.flag("use_sliding_window") is not False


def text_fields(top: Fields) -> Fields:
    """The innermost text model's keys; wrappers nest it under one of several names."""
    inner: Fields | None = top
    while inner is not None:
        top = inner
        inner = next((found for key in _TEXT_KEYS if (found := top.nested(key))), None)
    return top


def _find_weights(path: Path) -> tuple[str | None, str | None]:
    """Keys of embedding and head: the shortest that end as they should, outside vision towers."""
    index_path = path / INDEX_NAME
    if index_path.exists():
        names = list(read_weight_map(index_path))
    elif any(path.glob("*.safetensors")):
        names = list(read_folder_headers(path))
    else:
        return None, None
    return _by_suffix(names, _EMBED_SUFFIXES), _by_suffix(names, _HEAD_SUFFIXES)


def _by_suffix(names: list[str], suffixes: tuple[str, ...]) -> str | None:
    for suffix in suffixes:
        matches = [n for n in names if n == suffix or n.endswith(f".{suffix}")]
        matches = [n for n in matches if "vision" not in n and "visual" not in n] or matches
        if matches:
            return min(matches, key=len)
    return None


def _read_manifest(path: Path) -> FolderDigest | None:
    """What the folder says of its own files, where it says so in our way."""
    manifest = path / package.MANIFEST_NAME
    if not manifest.is_file():
        return None
    try:
        return FolderDigest.model_validate(read_json_object(manifest).get("files"))
    except ValidationError:
        return None
