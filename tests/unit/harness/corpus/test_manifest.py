import json
from pathlib import Path

import pytest

from harness.corpus.manifest import (
    Manifest,
    Plan,
    begin_stage,
    check_files,
    finish_stage,
    hold_folder,
    load_manifest,
)
from harness.corpus.storage import require_space
from harness.digests import digest_files
from harness.errors import CheckError, ConfigError, PrerequisiteError

PLAN = Plan(stage="regenerate", inputs={"prompts": "aa"}, config={"max_tokens": 64})
OTHER = PLAN.model_copy(update={"config": {"max_tokens": 32}})


def finish(folder: Path, plan: Plan = PLAN) -> Manifest:
    (folder / "conversations.jsonl").write_text("{}\n")
    files = digest_files(folder, ["conversations.jsonl"])
    return finish_stage(folder, plan, {"conversations": 1}, files, {"prompts": "p.jsonl"})


def test_finished_work_is_returned_unfinished_work_goes_on(tmp_path: Path) -> None:
    assert begin_stage(tmp_path, PLAN, overwrite=False) is None
    assert begin_stage(tmp_path, PLAN, overwrite=False) is None
    manifest = finish(tmp_path)
    assert begin_stage(tmp_path, PLAN, overwrite=False) == manifest
    assert load_manifest(tmp_path, "regenerate") == manifest


def test_another_stage_is_never_overwritten(tmp_path: Path) -> None:
    """`--out` may be a slip of the finger, and hidden states take days."""
    begin_stage(tmp_path, PLAN, overwrite=False)
    finish(tmp_path)
    other = PLAN.model_copy(update={"stage": "extract"})
    with pytest.raises(
        ConfigError, match="of stage 'extract', found one of stage 'regenerate'"
    ) as found:
        begin_stage(tmp_path, other, overwrite=True)
    assert "--overwrite" not in str(found.value.hint)
    assert (tmp_path / "conversations.jsonl").is_file()


@pytest.mark.parametrize("is_finished", [False, True])
def test_other_settings_are_refused_and_named(tmp_path: Path, is_finished: bool) -> None:
    begin_stage(tmp_path, PLAN, overwrite=False)
    if is_finished:
        finish(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.max_tokens: there 64, asked 32"):
        begin_stage(tmp_path, OTHER, overwrite=False)


def test_overwrite_removes_the_stage_and_nothing_else(tmp_path: Path) -> None:
    begin_stage(tmp_path, PLAN, overwrite=False)
    finish(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert begin_stage(tmp_path, OTHER, overwrite=True) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "plan.json"]


def test_a_kill_while_the_plan_was_written_leaves_a_usable_folder(tmp_path: Path) -> None:
    (tmp_path / ".plan.json.x7qk2p").write_text('{"sche')
    assert begin_stage(tmp_path, PLAN, overwrite=False) is None
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_strangers_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        begin_stage(tmp_path, PLAN, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").exists()


def test_digest_covers_what_was_made_and_neither_time_nor_place(tmp_path: Path) -> None:
    digests = set()
    for name, origin in (("a", "x.jsonl"), ("b", "y.jsonl")):
        folder = tmp_path / name
        folder.mkdir()
        manifest = finish(folder)
        moved = finish_stage(folder, PLAN, manifest.counts, manifest.files, {"prompts": origin})
        digests.add(moved.digest)
    assert len(digests) == 1
    assert finish(tmp_path / "a", OTHER).digest not in digests


def test_a_changed_byte_names_file_and_stage(tmp_path: Path) -> None:
    manifest = finish(tmp_path)
    (tmp_path / "conversations.jsonl").write_text("[]\n")
    check_files(tmp_path, manifest, deep=False)
    with pytest.raises(CheckError, match=r"regenerate: .*conversations\.jsonl was changed"):
        check_files(tmp_path, manifest, deep=True)


@pytest.mark.parametrize("text", [None, "{}\n{}\n"])
def test_a_lost_or_longer_file_is_found_by_its_size(tmp_path: Path, text: str | None) -> None:
    begin_stage(tmp_path, PLAN, overwrite=False)
    finish(tmp_path)
    path = tmp_path / "conversations.jsonl"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(CheckError, match="regenerate"):
        begin_stage(tmp_path, PLAN, overwrite=False)


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    finish(tmp_path)
    path = tmp_path / "manifest.json"
    document = json.loads(path.read_text())
    document["counts"]["conversations"] = 1000
    path.write_text(json.dumps(document))
    with pytest.raises(CheckError, match=r"manifest\.json was changed"):
        load_manifest(tmp_path, "regenerate")


def test_what_is_no_finished_stage_is_refused_with_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found none"):
        load_manifest(tmp_path / "nowhere", "prepare")
    with pytest.raises(ConfigError, match=r"expected manifest\.json"):
        load_manifest(tmp_path, "regenerate")
    begin_stage(tmp_path, PLAN, overwrite=False)
    with pytest.raises(ConfigError, match="unfinished"):
        load_manifest(tmp_path, "regenerate")
    finish(tmp_path)
    with pytest.raises(ConfigError, match="expected a folder of stage 'prepare'"):
        load_manifest(tmp_path, "prepare")


def test_a_folder_has_one_worker_at_a_time(tmp_path: Path) -> None:
    first, second = hold_folder(tmp_path / "out"), hold_folder(tmp_path / "out")
    with first, pytest.raises(ConfigError, match="another process"), second:
        pass
    with hold_folder(tmp_path / "out"):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"), hold_folder(tmp_path / "file" / "out"):
        pass


def test_too_little_space_is_refused_before_the_work(tmp_path: Path) -> None:
    require_space(tmp_path, 0, "nothing")
    with pytest.raises(
        PrerequisiteError, match=r"expected 1,050,000,000,064 MB free in .* for states"
    ):
        require_space(tmp_path, 10**18, "states")
