from pathlib import Path

import pytest

from harness.digests import FileDigest, FolderDigest, digest_files
from harness.drafter.package import (
    PackageManifest,
    _is_complete,
    load_package_manifest,
    materialise_package,
)
from harness.errors import ConfigError, PrerequisiteError


def test_a_missing_distribution_is_a_prerequisite(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="'no-such-package' to be installed"):
        materialise_package("no-such-package", tmp_path)


def test_a_distribution_without_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one \.gguf file in the distribution 'pydantic'"):
        materialise_package("pydantic", tmp_path)
    assert not list(tmp_path.iterdir())


def write_folder(folder: Path, source: Path) -> FolderDigest:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    files = digest_files(folder, ["config.json"])
    size = source.stat().st_size
    manifest = PackageManifest(
        schema_version=1,
        distribution="d",
        version="1",
        source=FileDigest(name=source.name, num_bytes=size, sha256="0"),
        converters={},
        files=files,
        digest=files.root,
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return files


def test_a_folder_is_complete_only_with_every_file_and_the_same_source(tmp_path: Path) -> None:
    source, folder = tmp_path / "a.gguf", tmp_path / "verifier"
    source.write_bytes(b"GGUF")
    assert not _is_complete(folder, source)
    files = write_folder(folder, source)
    assert _is_complete(folder, source)
    manifest = load_package_manifest(folder)
    assert manifest is not None
    assert manifest.digest == files.root
    (folder / "config.json").write_text("{ }")
    assert not _is_complete(folder, source)
    (folder / "config.json").write_text("{}")
    source.write_bytes(b"GGUF2")
    assert not _is_complete(folder, source)


def test_a_manifest_that_is_none_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"digest": "x"}')
    assert load_package_manifest(tmp_path) is None
