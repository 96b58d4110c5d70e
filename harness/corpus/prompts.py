"""Which prompts a corpus may be made of: none that an evaluation asks.

Reading and its errors are `eval.prompts`, so that training and evaluation files obey one format.
"""

import re
import unicodedata
from collections.abc import Sequence

from eval.promptsets import load_prompt_set
from eval.spec import Prompt
from harness.config.load import Frozen
from harness.errors import ConfigError

_SHOWN = 10
_NO_WORD = re.compile(r"[\W_]+")


class Overlap(Frozen):
    """A training prompt and an evaluation prompt that share a question."""

    training_id: str
    evaluation_id: str
    question: str


def find_overlap(training: Sequence[Prompt], evaluation: Sequence[Prompt]) -> tuple[Overlap, ...]:
    """Questions found in both, equal but for case, punctuation, spacing and Unicode form.

    Every turn of a conversation is a question of its own.
    """
    asked = {normalise(turn): prompt.id for prompt in evaluation for turn in prompt.turns}
    return tuple(
        Overlap(training_id=prompt.id, evaluation_id=asked[key], question=turn)
        for prompt in training
        for turn in prompt.turns
        if (key := normalise(turn)) in asked
    )


def require_disjoint(training: Sequence[Prompt], evaluation: str) -> None:
    """Refuses training prompts that an evaluation set asks too.

    Args:
        training: What is to be trained on.
        evaluation: Reference of a set, in any layout that a bench takes.

    Raises:
        ConfigError: Lists the shared questions by both ids.
        SpecError: The evaluation set cannot be had.
    """
    shared = find_overlap(training, load_prompt_set(evaluation))
    if not shared:
        return
    lines = [f"  {o.training_id} = {o.evaluation_id}: {o.question[:70]}" for o in shared[:_SHOWN]]
    more = [f"  and {len(shared) - _SHOWN} more"] if len(shared) > _SHOWN else []
    raise ConfigError(
        "\n".join([f"{len(shared)} training prompts are asked in {evaluation}:", *lines, *more]),
        "remove them from the training prompts: what was trained on measures nothing",
    )


def normalise(question: str) -> str:
    """The words of a question in one spelling; the text itself where it holds no words."""
    text = unicodedata.normalize("NFKC", question).casefold()
    return _NO_WORD.sub(" ", text).strip() or text.strip()
