import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from harness.remote.fetch import _link_tree


def _refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("is_one_disk", [True, False])
def test_a_folder_is_brought_onto_the_same_disk_or_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_one_disk: bool
) -> None:
    source, target = tmp_path / "mirror" / "7", tmp_path / "checkpoints" / "7"
    (source / "epochs").mkdir(parents=True)
    (source / "epochs" / "weights").write_bytes(b"new")
    (source / "best").symlink_to("epochs")
    target.mkdir(parents=True)
    (target / "old").touch()
    if not is_one_disk:
        monkeypatch.setattr(os, "link", _refuse)
    _link_tree(source, target)
    assert sorted(path.name for path in target.iterdir()) == ["best", "epochs"]
    assert (target / "best" / "weights").read_bytes() == b"new"
    is_shared = (target / "epochs" / "weights").samefile(source / "epochs" / "weights")
    assert is_shared == is_one_disk
