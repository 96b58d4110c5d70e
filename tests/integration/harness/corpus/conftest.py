"""A verifier of a few kilobytes that transformers runs, and prompts for it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eval.spec import ServerSpec
from harness.drafter.verifier import Verifier
from harness.settings import load_settings

SERVER = Path(__file__).parents[3] / "fakes" / "serve_answers.py"
NUM_LAYERS, HIDDEN, VOCAB = 8, 16, 256


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=VOCAB,
        max_position_embeddings=1024,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("verifier")
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def verifier(tiny_model_dir: Path) -> Verifier:
    return Verifier.load(str(tiny_model_dir), load_settings())


@pytest.fixture
def prompts_path(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": f"p{i}", "category": "chat", "prompt": f"question {i}"} for i in range(20)]
    lines.append({"id": "long", "category": "qa", "turns": ["first", "second", "third"]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def answering(tiny_model_dir: Path) -> Callable[..., ServerSpec]:
    """Builds the spec of a server that answers at once; keywords are its faults."""

    def build(**faults: object) -> ServerSpec:
        return ServerSpec(
            verifier=tiny_model_dir,
            command=(sys.executable, str(SERVER)),
            dtype="float32",
            env={f"ANSWERS_{name.upper()}": str(value) for name, value in faults.items()},
            stop_timeout_s=3.0,
            start_timeout_s=20.0,
        )

    return build


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""
