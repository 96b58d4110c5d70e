"""The state of the code, asked of a real git."""

import subprocess
from pathlib import Path

import pytest

from harness.drafter.provenance import CodeState, code_state


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "a.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_code_outside_a_checkout_has_no_commit(tmp_path: Path) -> None:
    assert code_state(tmp_path) == CodeState(commit=None, is_dirty=None, diff_sha256=None)


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    state = code_state(checkout)
    assert state == CodeState(
        commit=git(checkout, "rev-parse", "HEAD"), is_dirty=False, diff_sha256=None
    )


def test_every_change_has_its_digest(checkout: Path) -> None:
    (checkout / "harness" / "a.py").write_text("x = 2\n")
    edited = code_state(checkout)
    (checkout / "harness" / "b.py").write_text("y = 1\n")
    added = code_state(checkout)
    (checkout / "harness" / "b.py").write_text("y = 2\n")
    digests = {edited.diff_sha256, added.diff_sha256, code_state(checkout).diff_sha256}
    assert edited.is_dirty
    assert len(digests) == 3
    assert None not in digests


def test_the_code_that_runs_is_in_a_checkout() -> None:
    commit = code_state().commit
    assert commit is not None
    assert len(commit) == 40
