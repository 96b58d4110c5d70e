import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from harness.errors import PrerequisiteError
from harness.settings import load_settings
from harness.training.plan import (
    _NO_ARITHMETIC,
    _OF_GANGS,
    _fingerprint,
    find_folder,
    require_space,
)

from .conftest import MakePlan

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("changes", "num_weights"),
    [
        # keep_best + the last + the one being written, and one upload per epoch below the bound
        ({"keep_best": 1, "epochs": 3, "upload_below_mb": 0}, 3),
        ({"keep_best": 1, "epochs": 3}, 6),
        ({"keep_best": 4, "epochs": 1}, 7),
    ],
)
def test_the_disk_a_training_needs_is_counted(
    make_plan: MakePlan, changes: dict[str, Any], num_weights: int
) -> None:
    plan = make_plan(**changes)
    optimizer = 2 * plan.shape.optimizer_bytes
    assert plan.needed_bytes == num_weights * plan.shape.checkpoint_bytes + optimizer


def test_a_full_disk_is_found_before_anything_is_trained(
    make_plan: MakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, settings = make_plan(), load_settings(tmp_path)
    free = plan.needed_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, free))
    require_space(plan, settings)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 0, free - 1))
    with pytest.raises(PrerequisiteError, match="free") as error:
        require_space(plan, settings)
    assert "keep_best" in (error.value.hint or "")


def test_a_folder_is_looked_for_as_it_stands_and_then_below_the_project(tmp_path: Path) -> None:
    settings = load_settings(tmp_path)
    (tmp_path / "corpus").mkdir()
    assert find_folder(str(tmp_path / "corpus"), settings) == tmp_path / "corpus"
    assert find_folder("corpus", settings) == tmp_path / "corpus"


def test_a_gang_is_another_training_and_one_process_is_what_it_was(make_plan: MakePlan) -> None:
    def fingerprint(**changes: object) -> str:
        plan = make_plan(**changes)
        return _fingerprint(plan.config, "v", plan.corpus, plan.draft_config, None, vocab=None)

    of_one, of_two = fingerprint(), fingerprint(nproc=2)
    assert len({of_one, of_two, fingerprint(nproc=4), fingerprint(nproc=2, sharding="fsdp")}) == 4
    document = make_plan().config.model_dump(mode="json", exclude=_NO_ARITHMETIC | {"noise"})
    assert set(document) >= _OF_GANGS, "the keys are there, and left out of a lone one's"
