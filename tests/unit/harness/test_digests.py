"""Digests change with any byte; atomic writes are whole or absent."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.digests import digest_files, digest_json, sha256_file, write_atomic

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_sha256_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert sha256_file(tmp_path / "empty") == EMPTY


def test_one_flipped_byte_changes_the_root(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0" * 3_000_000)
    before = digest_files(tmp_path, ["a"])
    with (tmp_path / "a").open("r+b") as stream:
        stream.seek(2_999_999)
        stream.write(b"\1")
    after = digest_files(tmp_path, ["a"])
    assert before.root != after.root
    assert before.num_bytes == after.num_bytes == 3_000_000


@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=5))
def test_the_order_of_keys_does_not_matter(document: dict[str, object]) -> None:
    assert digest_json(document) == digest_json(dict(reversed(document.items())))


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    write_atomic(target, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
