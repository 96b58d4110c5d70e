"""`harness bench --parity`: the outputs of a finished measurement, replayed without a server."""

from collections.abc import Sequence
from pathlib import Path

from eval.cells import read_cells
from eval.facts import DraftFacts
from eval.progress import ProgressFn
from eval.result import BenchResult
from eval.runner import RESULT_NAME
from eval.spec import BenchSpec, DrafterSpec
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError

STATES_DIR = "transcripts"
"""Below a measurement's folder: hidden states of its answers."""


def require_replayable(spec: BenchSpec, verifier: Verifier) -> None:
    """Refuses what a replay cannot compute, before anything is measured.

    Raises:
        ConfigError: Sampled answers, no drafter, or a verifier whose parts are unknown.
        CheckError: A drafter of a kind that cannot be replayed.
    """
    if spec.sampling.temperature > 0:
        raise ConfigError(
            f"--parity: expected greedy answers, found temperature {spec.sampling.temperature:g}",
            "--set temperature=0",
        )
    if not spec.drafters:
        raise ConfigError("--parity: expected a drafter to replay, found none", "say --drafter")
    verifier_facts(verifier, digest="")
    _facts(spec.drafters, verifier)


def add_parity(
    result: BenchResult, out_dir: Path, verifier: Verifier, digest: str, progress: ProgressFn
) -> BenchResult:
    """The result with its parity report, which is also kept in the measurement's folder.

    Args:
        result: The finished measurement.
        out_dir: Its folder.
        verifier: Its verifier.
        digest: The verifier's.
        progress: Told how far it is.

    Raises:
        EvalError: The answers cannot be replayed.
    """
    if result.parity is not None:
        return result
    # Imports torch and transformers; a bench without --parity needs neither.
    from eval.parity import check_parity  # noqa: PLC0415

    parity = check_parity(
        result,
        read_cells(out_dir),
        verifier_facts(verifier, digest),
        _facts(result.spec.drafters, verifier),
        out_dir / STATES_DIR,
        progress=progress,
    )
    whole = result.model_copy(update={"parity": parity})
    whole.write(out_dir / RESULT_NAME)
    return whole


def _facts(drafters: Sequence[DrafterSpec], verifier: Verifier) -> dict[str, DraftFacts]:
    return {d.name: draft_facts(Drafter.load(d.path), verifier) for d in drafters}
