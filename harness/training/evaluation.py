"""The evaluation prompts of a training: what the verifier says to them, recorded once.

They are not of the corpus. A drafter's acceptance on them, beside that on its own validation rows,
tells how much of an estimate is the domain. Imports torch: seconds.
"""

from collections.abc import Iterable

from eval.progress import ProgressFn
from eval.sequences import Row
from eval.transcripts import read_rows as read_transcripts
from harness.corpus.answers import record_shared
from harness.corpus.rows import read_rows
from harness.drafter.arithmetic import verifier_facts
from harness.errors import ConfigError
from harness.settings import Settings
from harness.training.plan import TrainPlan

_NUM_SHOWN = 3


def record_evaluation(plan: TrainPlan, settings: Settings, progress: ProgressFn) -> list[Row]:
    """The verifier's answers to the training's evaluation prompts; empty without any.

    Raises:
        ConfigError: The corpus holds some of the prompts.
        VerifierError: The verifier cannot answer on this machine.
    """
    if not plan.eval_prompts:
        return []
    config = plan.config
    found = record_shared(
        verifier_facts(plan.verifier, plan.verifier_digest),
        plan.eval_prompts,
        settings,
        max_tokens=config.eval_max_tokens,
        k=config.ttt_steps,
        aux_layer_ids=plan.corpus.aux_layer_ids,
        dtype="float32" if plan.corpus.dtype == "float32" else "bfloat16",
        progress=progress,
    )
    rows = read_transcripts(found)
    require_apart(rows, read_rows(plan.corpus))
    return rows


def require_apart(prompts: Iterable[Row], corpus: Iterable[Row]) -> None:
    """Refuses evaluation prompts whose very tokens begin a conversation of the corpus.

    Raises:
        ConfigError: Names some of them.
    """
    known = {row.token_ids[: row.spans[0].begin]: row.id for row in corpus if row.spans}
    same = {
        row.id: known[start]
        for row in prompts
        if (start := row.token_ids[: row.spans[0].begin]) in known
    }
    if same:
        shown = ", ".join(f"{a} (row {b} there)" for a, b in list(same.items())[:_NUM_SHOWN])
        raise ConfigError(
            f"eval_prompts: {len(same)} of the prompts are in the corpus: {shown}",
            "evaluate on prompts that no training sees",
        )
