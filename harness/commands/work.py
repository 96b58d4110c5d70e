"""Before bench and replay begin: which verifier and prompts are meant, where the work is kept."""

from collections.abc import Sequence
from pathlib import Path

from eval.prompts import pick_prompts
from eval.promptsets import load_prompt_set
from eval.spec import Prompt
from harness.config.bench import BenchConfig
from harness.config.replay import ReplayConfig
from harness.drafter.drafter import Drafter
from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.resolve import ResolvedDrafter
from harness.tracking.store import Store

DEFAULT_PROMPTS = Path("experiments/smollm2-135m/prompts/eval.jsonl")
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


def load_prompts(config: BenchConfig | ReplayConfig, settings: Settings) -> tuple[Prompt, ...]:
    """The prompts of a config, as many as it asks for; those of our own where it names none.

    Raises:
        EvalError: They cannot be read.
    """
    prompts = load_prompt_set(config.prompts or str(settings.root_dir / DEFAULT_PROMPTS))
    if config.num_prompts is None:
        return prompts
    return pick_prompts(prompts, config.num_prompts, config.prompts_seed)


def work_folder(parent: Path, fingerprint: str, *, is_reusing: bool = False) -> Path:
    """The folder of the unfinished work of this kind, else of a new one."""
    number = 1
    while True:
        folder = parent / f"{fingerprint[:16]}-{number}"
        if is_reusing or not (folder / LOGGED).exists():
            return folder
        number += 1
