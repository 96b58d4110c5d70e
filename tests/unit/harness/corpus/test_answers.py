"""Answers of a verifier are kept where every command finds them again."""

from pathlib import Path

import pytest
from fakes.tiny_corpus import (
    AUX_LAYER_IDS,
    prompt_words,
    running_verifier_facts,
    write_running_verifier,
    write_words,
)

from eval.facts import VerifierFacts
from eval.spec import Prompt
from eval.transcripts import TranscriptSet
from harness.corpus.answers import record_shared
from harness.settings import Settings

PROMPTS = (Prompt(id="one", category="chat", turns=(prompt_words(0),)),)


@pytest.fixture
def verifier(tmp_path: Path) -> VerifierFacts:
    folder = write_running_verifier(tmp_path / "verifier")
    write_words(folder)
    return running_verifier_facts(folder)


def ask(verifier: VerifierFacts, root: Path, k: int) -> TranscriptSet:
    return record_shared(
        verifier,
        PROMPTS,
        Settings(root_dir=root, tracking_uri="unused", cache_dir=root / "cache"),
        max_tokens=4,
        k=k,
        aux_layer_ids=AUX_LAYER_IDS,
        dtype="float32",
        progress=lambda *_: None,
    )


def test_a_question_is_asked_once_for_every_usual_k(
    verifier: VerifierFacts, tmp_path: Path
) -> None:
    asked, again, larger = (ask(verifier, tmp_path, k) for k in (3, 8, 12))
    assert asked.states_s is not None
    assert again == asked.model_copy(update={"states_s": None, "answers_s": None})
    assert larger.folder != asked.folder
    assert [len(one.transcripts[0].beyond) for one in (asked, larger)] == [8, 12]
