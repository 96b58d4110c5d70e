"""References to drafters: what a user may type, turned into a folder and where it came from.

`PATH`, `run:<id>`, `run:<id>@<epoch|step>`, `models:/<name>@<alias>`, `models:/<name>/<version>`,
`hf:<org>/<repo>[@rev]`. A path is answered without opening the store.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.drafter.drafter import drafter_digest
from harness.drafter.hub import fetch_snapshot
from harness.errors import CheckError, ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import Checkpoint
from harness.tracking.store import Store, open_store

FORMS = (
    "PATH, run:<id>, run:<id>@<epoch or step>, models:/<name>@<alias>, models:/<name>/<version> "
    "or hf:<org>/<repo>[@rev]"
)
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_RUN = re.compile(r"run:([0-9a-f]{8,32})(?:@(\d+|best|last))?")
_RUN_ID_LENGTH = 32
_MODEL = re.compile(rf"models:/({MODEL_NAME.pattern})(?:@([A-Za-z][\w\-]*)|/(\d+))")
_LOGGED_MODEL = re.compile(r"models:/(m-[0-9a-f]{32})")


class ResolvedDrafter(Frozen):
    """Where a reference leads. Ids and digest are None for what the store knows nothing of."""

    reference: str
    path: Path
    run_id: str | None = None
    model_id: str | None = None
    digest: str | None = None
    """Root digest that was recorded with the checkpoint: what the files must still hash to."""
    checkpoint: Checkpoint | None = None


def resolve_drafter(
    reference: str, settings: Settings, store: Store | None = None
) -> ResolvedDrafter:
    """Finds the folder that a reference means.

    Args:
        reference: One of the forms in `FORMS`.
        settings: Where the project and its store are.
        store: The open store; None opens it if the reference needs one.

    Raises:
        ConfigError: The reference has no known form, or there is no such thing.
        CheckError: The checkpoint's files are gone.
        PrerequisiteError: A hub repository that is neither cached nor reachable.
    """
    if not reference.strip():
        raise ConfigError(
            "expected a reference of a drafter, found an empty one",
            "if it came from a shell variable, that variable is not set",
        )
    if reference.startswith(("run:", "models:")):
        store = store or open_store(settings)
        return _of_checkpoint(*find_checkpoint(reference, store), store)
    if reference.startswith("hf:"):
        return ResolvedDrafter(
            reference=reference, path=fetch_snapshot(reference.removeprefix("hf:"))
        )
    path = Path(reference).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"expected a drafter, found no folder {path.absolute()}", f"a reference is {FORMS}"
        )
    return ResolvedDrafter(reference=reference, path=path.resolve())


def find_checkpoint(reference: str, store: Store) -> tuple[str, Checkpoint]:
    """The checkpoint that `run:...` or `models:...` means, wherever its files may be by now.

    Returns:
        The reference with the whole id of its run, and the checkpoint.

    Raises:
        ConfigError: The reference has no known form, or there is no such thing.
    """
    if reference.startswith("run:"):
        return _of_run(reference, store)
    return reference, _of_model(reference, store)


def recognise(drafter: ResolvedDrafter, settings: Settings, store: Store) -> ResolvedDrafter:
    """Adds what the store knows of a folder that one of its runs made.

    A finetune from such a path has the same parent, root and depth as one from `run:<id>`.
    """
    run_id = run_of_path(drafter.path, settings)
    if drafter.run_id is not None or run_id is None:
        return drafter
    try:
        found = [c for c in store.checkpoints(run_id) if c.path.resolve() == drafter.path]
    except ConfigError:  # the run was deleted; its folder is a drafter like any other
        return drafter
    if not found:
        return drafter
    known = _of_checkpoint(drafter.reference, found[0], store)
    return known.model_copy(update={"path": drafter.path})


def run_of_path(path: Path, settings: Settings) -> str | None:
    """The run whose folder of checkpoints a path lies in."""
    home = settings.checkpoints_dir.resolve()
    if not path.is_relative_to(home):
        return None
    first = path.relative_to(home).parts[:1]
    return first[0] if first and _RUN_ID.fullmatch(first[0]) else None


def require_unchanged(
    drafter: ResolvedDrafter, store: Store, on_bytes: Callable[[int], None] | None = None
) -> str:
    """Hashes the drafter's files again and returns their root digest.

    Raises:
        CheckError: They are not what was recorded; the message names the files that differ.
    """
    found = drafter_digest(drafter.path, on_bytes)
    if drafter.digest is None or found.root == drafter.digest:
        return found.root
    expected = store.checkpoint_manifest(drafter.model_id) if drafter.model_id else None
    before = {file.name: file.sha256 for file in expected.files} if expected else {}
    now = {file.name: file.sha256 for file in found.files}
    different = sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))
    raise CheckError(
        f"{drafter.reference} was changed after it was recorded: {', '.join(different)} in "
        f"{drafter.path}; expected root digest {drafter.digest}, found {found.root}",
        "restore the files from a copy, or train again; changed weights carry no evidence",
    )


def complete_run_id(beginning: str, store: Store, kind: str | None = None) -> str:
    """The run whose id begins so; tables show the first 8 digits.

    Args:
        beginning: 8 to 32 hex digits; a whole id is returned without a look.
        store: The open store.
        kind: Of the run; None: any.

    Raises:
        ConfigError: None or several begin so.
    """
    if len(beginning) == _RUN_ID_LENGTH:
        return beginning
    matches = [run.run_id for run in store.find_runs(kind=kind, id_prefix=beginning, limit=2)]
    if len(matches) != 1:
        what = "training" if kind == names.KIND_TRAIN else "run"
        count = "several" if matches else "none"
        raise ConfigError(
            f"expected one {what} whose id begins with {beginning}, found {count} in "
            f"{store.address}",
            "give more of its 32 digits",
        )
    return matches[0]


def count_hashed(progress: ProgressFn | None, total: int) -> Callable[[int], None]:
    """What to hand to `require_unchanged` so that `progress` is told of the bytes it hashed."""
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress("hashing the weights", done, total)

    return on_bytes


def best_checkpoint(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """The best of a run: highest acceptance length in validation, replayed from the file.

    Where that is unknown, the trainer's estimate of it ranks, else the lowest loss, else the last
    one is taken. Only a figure that every checkpoint has can rank them.
    """
    loss = names.METRIC_VAL_LOSS
    for length in (names.METRIC_VAL_ACCEPTANCE_LENGTH, names.METRIC_VAL_ESTIMATED_LENGTH):
        if all(length in checkpoint.metrics for checkpoint in checkpoints):
            return max(checkpoints, key=lambda checkpoint: checkpoint.metrics[length])
    if all(loss in checkpoint.metrics for checkpoint in checkpoints):
        return min(checkpoints, key=lambda checkpoint: checkpoint.metrics[loss])
    return max(checkpoints, key=lambda checkpoint: checkpoint.step)


def _of_run(reference: str, store: Store) -> tuple[str, Checkpoint]:
    match = _RUN.fullmatch(reference)
    if not match:
        raise ConfigError(
            f"expected run:<id> or run:<id>@<epoch or step>, the id's 32 hex digits or their first "
            f"8 and more, found {reference!r}",
            "the UI (harness ui) shows the id of each run at the top of its page",
        )
    beginning, which = match.groups()
    run_id = complete_run_id(beginning, store, names.KIND_TRAIN)
    reference = reference.replace(beginning, run_id, 1)
    run = store.get_run(run_id)
    found = store.checkpoints(run_id)
    if not found:
        raise ConfigError(
            f"expected a training run with checkpoints, found none in {run.name!r} "
            f"({run.kind or 'unknown'} run, {run.status})"
        )
    return reference, _pick(reference, found, which)


def _pick(reference: str, found: Sequence[Checkpoint], which: str | None) -> Checkpoint:
    """An epoch wins over a step of the same number: people count in epochs."""
    if which in {None, "best"}:
        return best_checkpoint(found)
    if which == "last":
        return found[-1]
    for attribute in ("epoch", "step"):
        for checkpoint in found:
            if getattr(checkpoint, attribute) == int(which or 0):
                return checkpoint
    known = ", ".join(f"epoch {c.epoch} (step {c.step})" for c in found)
    raise ConfigError(f"{reference}: no checkpoint of that epoch or step; there are {known}")


def _of_model(reference: str, store: Store) -> Checkpoint:
    direct = _LOGGED_MODEL.fullmatch(reference)
    if direct:
        return store.get_checkpoint(direct[1])
    match = _MODEL.fullmatch(reference)
    if not match:
        raise ConfigError(
            f"expected models:/<name>@<alias> or models:/<name>/<version>, found {reference!r}"
        )
    name, alias, number = match.groups()
    versions = store.registry.versions(name)
    if not versions:
        known = ", ".join(store.registry.names()) or "none yet"
        raise ConfigError(
            f"{reference}: no registered model {name!r}; registered: {known}",
            "register one with: harness promote run:<id> --name NAME --policy FILE",
        )
    wanted = store.registry.aliases(name).get(alias) if alias else int(number)
    for version in versions:
        if version.version == wanted:
            return store.get_checkpoint(version.model_id)
    have = "; ".join(f"{v.version} ({', '.join(v.aliases) or 'no alias'})" for v in versions)
    raise ConfigError(f"{reference}: no such alias or version of {name}; versions: {have}")


def _of_checkpoint(reference: str, checkpoint: Checkpoint, store: Store) -> ResolvedDrafter:
    path: Path | None = checkpoint.path
    if not checkpoint.path.is_dir():
        path = store.checkpoint_files(checkpoint.model_id)
    if path is None or not path.is_dir():
        raise CheckError(
            f"{reference}: the files of checkpoint {checkpoint.name!r} are gone: expected them in "
            f"{checkpoint.path}, and they were too large to be uploaded",
            "put the folder back, or train again",
        )
    return ResolvedDrafter(
        reference=reference,
        path=path,
        run_id=checkpoint.run_id,
        model_id=checkpoint.model_id,
        digest=checkpoint.digest,
        checkpoint=checkpoint,
    )
