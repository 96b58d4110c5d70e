import json
from pathlib import Path

import pytest

from harness.training.folders import (
    adopt_interrupted,
    copy_part,
    discard_unusable,
    drop_resume_state,
    finish_checkpoint,
    list_epochs,
)


def write_epoch(save_dir: Path, epoch: int, *, local_step: int = 0, step: int = 10) -> Path:
    folder = save_dir / str(epoch)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "optimizer_state_dict.pt").write_bytes(b"state")
    state = {"epoch": epoch, "local_step": local_step, "global_step": step}
    (folder / "training_state.json").write_text(json.dumps(state))
    return folder


def test_links_and_half_written_folders_are_no_epochs(tmp_path: Path) -> None:
    write_epoch(tmp_path, 0)
    write_epoch(tmp_path, 10, step=99)
    write_epoch(tmp_path, 2, local_step=3)
    (tmp_path / "epoch10_end").symlink_to("10")
    (tmp_path / "checkpoint_best").symlink_to("0")
    (tmp_path / "11").mkdir()
    (tmp_path / "run.yaml").write_text("")
    epochs = list_epochs(tmp_path)
    assert [(e.epoch, e.local_step, e.step) for e in epochs] == [
        (0, 0, 10),
        (2, 3, 10),
        (10, 0, 99),
    ]


def test_a_copy_of_a_part_is_for_a_replay_and_goes_with_the_next_start(tmp_path: Path) -> None:
    copy = copy_part(write_epoch(tmp_path, 3, local_step=5), step=5)
    assert [path.name for path in copy.iterdir()] == ["model.safetensors"]
    assert [epoch.epoch for epoch in list_epochs(tmp_path)] == [3]
    discard_unusable(tmp_path)
    assert not copy.exists()


def test_there_are_none_where_nothing_was_saved(tmp_path: Path) -> None:
    assert list_epochs(tmp_path / "missing") == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"epoch": 1}'])
def test_a_broken_state_file_means_a_half_written_folder(tmp_path: Path, text: str) -> None:
    (write_epoch(tmp_path, 1) / "training_state.json").write_text(text)
    assert list_epochs(tmp_path) == ()


def test_what_the_trainer_must_not_resume_from_is_removed(tmp_path: Path) -> None:
    write_epoch(tmp_path, 0)
    (write_epoch(tmp_path, 1) / "training_state.json").unlink()
    (tmp_path / "interrupted").mkdir()
    (tmp_path / "checkpoint_best").symlink_to("7")
    (tmp_path / "epoch0_end").symlink_to("0")
    (tmp_path / "run.yaml").write_text("kept")
    discard_unusable(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"0", "epoch0_end", "run.yaml"}


def test_an_interrupted_epoch_becomes_one_to_resume_from(tmp_path: Path) -> None:
    write_epoch(tmp_path, 0)
    (tmp_path / "interrupted").mkdir()
    assert adopt_interrupted(tmp_path, "interrupted", epoch=1, local_step=4, step=14)
    last = list_epochs(tmp_path)[-1]
    assert (last.epoch, last.local_step, last.step) == (1, 4, 14)
    assert not (tmp_path / "interrupted").exists()


def test_an_interruption_while_validating_keeps_the_epochs_own_checkpoint(tmp_path: Path) -> None:
    write_epoch(tmp_path, 1, step=20)
    (tmp_path / "interrupted").mkdir()
    assert adopt_interrupted(tmp_path, "interrupted", epoch=1, local_step=10, step=20)
    assert list_epochs(tmp_path)[-1].local_step == 0
    assert not (tmp_path / "interrupted").exists()


def test_an_interruption_before_the_first_step_leaves_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "interrupted").mkdir()
    assert adopt_interrupted(tmp_path, "interrupted", epoch=0, local_step=0, step=0)
    assert list_epochs(tmp_path) == ()


def test_a_training_that_was_not_interrupted_is_left_alone(tmp_path: Path) -> None:
    write_epoch(tmp_path, 0)
    assert not adopt_interrupted(tmp_path, "interrupted", epoch=0, local_step=10, step=10)
    assert len(list_epochs(tmp_path)) == 1


def test_only_the_last_epoch_keeps_what_resume_needs(tmp_path: Path) -> None:
    for epoch in (0, 1, 2):
        write_epoch(tmp_path, epoch)
    drop_resume_state(tmp_path, keep_last=True)
    assert [e.is_resumable for e in list_epochs(tmp_path)] == [False, False, True]
    drop_resume_state(tmp_path, keep_last=False)
    assert [e.is_resumable for e in list_epochs(tmp_path)] == [False, False, False]


def test_a_finished_checkpoint_asks_no_reader_to_import_code(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"": "config.X"}, "dtype": "bfloat16"}')
    (tmp_path / "config.py").write_text("")
    finish_checkpoint(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"dtype": "bfloat16"}
    assert not (tmp_path / "config.py").exists()
