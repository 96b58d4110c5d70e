"""Before bench and replay begin: which verifier is meant, and where the work is kept."""

from collections.abc import Sequence
from pathlib import Path

from harness.drafter.drafter import Drafter
from harness.errors import ConfigError
from harness.tracking import names
from harness.tracking.resolve import ResolvedDrafter
from harness.tracking.store import Store

LOGGED = "run_id.txt"
"""In the folder of finished work: the run that tells of it."""


def verifier_reference(given: str | None, resolved: Sequence[ResolvedDrafter], store: Store) -> str:
    """The verifier that was asked for, else that of the run that trained a drafter.

    Raises:
        ConfigError: None was given and none recorded.
    """
    if given:
        return given
    for drafter in resolved:
        if drafter.run_id:
            reference = store.get_run(drafter.run_id).tags.get(names.TAG_VERIFIER)
            if reference:
                return reference
    named = {Drafter.load(drafter.path).verifier_name for drafter in resolved} - {None}
    shown = f"; the drafter was trained for {', '.join(map(str, named))}" if named else ""
    raise ConfigError(
        f"expected a verifier, found none given and none recorded{shown}",
        "say --verifier with a folder, package:<distribution> or hf:<org>/<repo>",
    )


def work_folder(parent: Path, fingerprint: str, *, is_reusing: bool = False) -> Path:
    """The folder of the unfinished work of this kind, else of a new one."""
    number = 1
    while True:
        folder = parent / f"{fingerprint[:16]}-{number}"
        if is_reusing or not (folder / LOGGED).exists():
            return folder
        number += 1
