"""What a verifier says to prompts, kept for every command that replays: no question is asked twice.

Imports torch: seconds.
"""

from collections.abc import Sequence

from filelock import FileLock

from eval.facts import VerifierFacts
from eval.progress import ProgressFn
from eval.prompts import digest_prompts
from eval.spec import Prompt
from eval.transcripts import TranscriptSet, record_prompts
from harness.digests import digest_json
from harness.settings import Settings

_NUM_BEYOND = 8
"""Tokens past the end of an answer that are kept: enough for every K up to 9 from one recording."""


def record_shared(
    verifier: VerifierFacts,
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    max_tokens: int,
    k: int,
    aux_layer_ids: tuple[int, ...],
    dtype: str,
    progress: ProgressFn,
) -> TranscriptSet:
    """The verifier's answers with hidden states, from `settings.replay_dir` if they are there.

    A second process that wants the same waits for the first.

    Args:
        verifier: Who answers.
        prompts: What is asked.
        settings: Where answers are kept.
        max_tokens: Answer tokens per turn at most.
        k: The largest K that will be replayed over them.
        aux_layer_ids: Layers whose inputs are kept; the final norm's input always is.
        dtype: Of the verifier's arithmetic and the kept states.
        progress: Told how far it is.

    Raises:
        SpecError: A kept file is damaged.
        VerifierError: The verifier does not load here, or overflows.
    """
    num_beyond = max(k, _NUM_BEYOND)
    inputs = {
        "verifier": verifier.digest,
        "prompts": digest_prompts(prompts),
        "max_tokens": max_tokens,
        "num_beyond": num_beyond,
        "aux_layer_ids": aux_layer_ids,
        "dtype": dtype,
    }
    folder = settings.replay_dir / "states" / digest_json(inputs)[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{folder.name}.lock"):
        return record_prompts(
            verifier,
            prompts,
            folder,
            max_tokens=max_tokens,
            num_beyond=num_beyond,
            aux_layer_ids=aux_layer_ids,
            dtype=dtype,
            progress=progress,
        )
