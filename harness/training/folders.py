"""Epoch folders as the trainer writes them: which are whole, what resume needs, what vLLM must see.

A folder is whole when it has `training_state.json`, which the trainer writes last. Nothing here
imports torch.
"""

import json
import shutil
from pathlib import Path

from harness.config.load import Frozen
from harness.digests import write_atomic

EPOCHS_DIR = "epochs"
"""Below a run's folder: one folder per epoch."""
STATE_NAME = "training_state.json"
FIGURES_NAME = "figures.json"
"""Validation figures of a checkpoint; a finished epoch without it was not validated."""
CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
RESUME_NAMES = ("optimizer_state_dict.pt", "scheduler_state_dict.pt")
"""Needed to go on training, not to serve."""
_CODE_KEYS = ("auto_map",)


class EpochFolder(Frozen):
    """A whole checkpoint folder of the trainer."""

    path: Path
    epoch: int
    local_step: int
    """Steps into the epoch; 0 when the epoch was finished."""
    step: int

    @property
    def is_resumable(self) -> bool:
        """Whether the optimiser state is still there."""
        return (self.path / RESUME_NAMES[0]).is_file()


def list_epochs(save_dir: Path) -> tuple[EpochFolder, ...]:
    """The whole epoch folders, by epoch; links to them (`checkpoint_best`) are not followed."""
    if not save_dir.is_dir():
        return ()
    folders = (
        read_epoch(path)
        for path in save_dir.iterdir()
        if path.name.isdecimal() and path.is_dir() and not path.is_symlink()
    )
    return tuple(sorted((f for f in folders if f), key=lambda folder: folder.epoch))


def read_epoch(path: Path) -> EpochFolder | None:
    """A checkpoint folder's state; None when the folder is not whole."""
    try:
        state = json.loads((path / STATE_NAME).read_text())
        return EpochFolder(
            path=path,
            epoch=state["epoch"],
            local_step=state["local_step"],
            step=state["global_step"],
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def discard_unusable(save_dir: Path) -> None:
    """Removes what the trainer must not resume from: half-written folders, dangling links."""
    if not save_dir.is_dir():
        return
    for path in save_dir.iterdir():
        if path.is_symlink():
            if not path.exists():
                path.unlink()
        elif path.is_dir() and (not path.name.isdecimal() or read_epoch(path) is None):
            shutil.rmtree(path)


def drop_resume_state(save_dir: Path, *, keep_last: bool) -> None:
    """Deletes optimiser states, which no one resumes from once there is a later checkpoint."""
    epochs = list_epochs(save_dir)
    for folder in epochs[:-1] if keep_last else epochs:
        for name in RESUME_NAMES:
            (folder.path / name).unlink(missing_ok=True)


def adopt_interrupted(save_dir: Path, name: str, *, epoch: int, local_step: int, step: int) -> bool:
    """Makes the checkpoint of an interrupted epoch one that the trainer resumes from.

    The trainer saves it under a name of its own, without the step, and never reads it again.

    Args:
        save_dir: Where the epoch folders lie.
        name: The folder the trainer saved to when it was interrupted.
        epoch: The epoch it was in.
        local_step: Steps of that epoch that were done.
        step: Steps of the whole training that were done.

    Returns:
        Whether there was such a checkpoint.
    """
    source, target = save_dir / name, save_dir / str(epoch)
    if not source.is_dir():
        return False
    finished = read_epoch(target)
    if local_step == 0 or (finished is not None and finished.local_step == 0):
        shutil.rmtree(source)
        return True
    if target.is_dir():
        shutil.rmtree(target)
    source.rename(target)
    state = {"epoch": epoch, "local_step": local_step, "global_step": step}
    write_atomic(target / STATE_NAME, json.dumps(state))
    return True


def copy_part(folder: Path, step: int) -> Path:
    """Copies what a replay needs of a checkpoint that the end of its epoch will replace.

    What is left of such copies goes with the next start (`discard_unusable`).
    """
    target = folder.with_name(f"part-{step}")
    ignored = shutil.ignore_patterns(*RESUME_NAMES, STATE_NAME)
    shutil.copytree(folder, target, ignore=ignored, dirs_exist_ok=True)
    return target


def finish_checkpoint(folder: Path) -> None:
    """Takes out of a saved checkpoint what would make a reader import code beside the weights."""
    path = folder / CONFIG_NAME
    document = json.loads(path.read_text())
    if any(key in document for key in _CODE_KEYS):
        plain = {key: value for key, value in document.items() if key not in _CODE_KEYS}
        write_atomic(path, json.dumps(plain, indent=2) + "\n")
    for script in folder.glob("*.py"):
        script.unlink()
