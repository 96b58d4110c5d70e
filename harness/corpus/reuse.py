"""Answers of an earlier regeneration for prompts that are asked again."""

from collections.abc import Mapping
from pathlib import Path

from eval.spec import Prompt
from harness.corpus.conversations import Conversation, load_conversations
from harness.corpus.manifest import Plan, spell_differences
from harness.errors import ConfigError


def find_answered(folder: Path, plan: Plan, prompts: Mapping[str, Prompt]) -> list[Conversation]:
    """Conversations of a finished regeneration that answer these prompts, by id and words.

    Args:
        folder: The earlier regeneration.
        plan: Of the new one; verifier and settings must be the earlier one's.
        prompts: What is asked, by id.

    Raises:
        ConfigError: No finished regeneration there, or one of another verifier or other settings.
        CheckError: A file of it was changed.
    """
    manifest, conversations = load_conversations(folder)
    there = {"verifier": manifest.inputs.get("verifier"), **manifest.config}
    asked = {"verifier": plan.inputs.get("verifier"), **plan.config}
    if differing := spell_differences(there, asked):
        raise ConfigError(
            f"{folder}: expected answers of the same verifier and settings, found:\n{differing}",
            "leave --reuse out, or ask with the settings of that folder",
        )
    return [said for said in conversations if _is_same(said, prompts.get(said.id))]


def _is_same(said: Conversation, prompt: Prompt | None) -> bool:
    if prompt is None or said.system != prompt.system:
        return False
    return tuple(turn.question for turn in said.turns) == prompt.turns
