"""What bench and replay have in common: verifier and prompts that are meant, where work is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

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
from harness.tracking.run import Run
from harness.tracking.store import Store

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_PROMPTS = Path("experiments/smollm2-135m/prompts/eval.jsonl")
LOGGED = "run_id.txt"
"""In the folder of finished work: the run that tells of it."""

ResultT = TypeVar("ResultT")


class LoggedResult(NamedTuple, Generic[ResultT]):
    """A result, the run that tells of it, and where it is kept."""

    run_id: str
    result: ResultT
    result_path: Path
    """The document on disk."""
    report_path: Path
    """The page for people beside it."""

    @property
    def out_dir(self) -> Path:
        """The folder of all that was kept."""
        return self.result_path.parent


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


def model_ids(resolved: Sequence[ResolvedDrafter]) -> dict[str, str]:
    """Reference to model id, of the drafters that are checkpoints of the store."""
    return {drafter.reference: drafter.model_id for drafter in resolved if drafter.model_id}


def log_views(run: Run, kind: str, page_path: Path, page: str, samples: "pd.DataFrame") -> None:
    """Writes the page for people, the samples for analysis beside it, and puts both on the run.

    Args:
        run: The open run.
        kind: Its kind, which is its artifact folder.
        page_path: Where the page is written.
        page: Its HTML.
        samples: A row per sample.
    """
    page_path.write_text(page, encoding="utf-8")
    run.log_file(page_path, kind)
    samples_path = page_path.with_name("samples.parquet")
    samples.to_parquet(samples_path)
    run.log_file(samples_path, kind)
