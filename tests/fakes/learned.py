"""A small verifier that vLLM serves and a drafter that was really trained for it, in half a minute.

The verifier is random and answers in short cycles, which the drafter learns: it accepts the answers
to `prompts`. For tests of engines and detectors that an untrained drafter would tell nothing.
"""

from pathlib import Path
from typing import NamedTuple

from fakes.memory_store import MemoryStore
from fakes.tiny_corpus import prompt_words, write_running_verifier, write_tiny_corpus, write_words

from eval.spec import Prompt
from harness.config.train import TrainConfig
from harness.settings import Settings, load_settings
from harness.training.run import run_training

HIDDEN, HEADS, HEAD_DIM = 128, 4, 64
"""hidden / heads would be 32: a head_dim that was inferred shows."""
_CONTEXT, _NUM_PROMPTS = 96, 12


class Learned(NamedTuple):
    """A verifier, a drafter that accepts its answers to these prompts, and the context there is."""

    verifier: Path
    drafter: Path
    prompts: tuple[Prompt, ...]
    max_model_len: int


def train_learned(root: Path) -> Learned:
    """Writes verifier and corpus below `root` and trains a drafter there."""
    verifier = write_running_verifier(
        root / "verifier", hidden=HIDDEN, heads=HEADS, kv_heads=HEADS, initializer_range=0.12
    )
    write_words(verifier)
    corpus = write_tiny_corpus(root / "corpus", verifier, num_distinct=_NUM_PROMPTS)
    config = TrainConfig(
        verifier=str(verifier),
        corpus=str(corpus),
        head_dim=HEAD_DIM,
        draft_vocab_size=64,
        total_seq_len=128,
        epochs=16,
        lr=2e-3,
        device="cpu",
        smoke="never",
        keep_best=1,
    )
    trained = run_training(config, _settings(root), MemoryStore(root), lambda *_: None)
    prompts = tuple(
        Prompt(id=str(number), category="ab"[number % 2], turns=(prompt_words(number),))
        for number in range(_NUM_PROMPTS)
    )
    return Learned(verifier, Path(trained.best.path), prompts, _CONTEXT)


def _settings(root: Path) -> Settings:
    return load_settings(root).model_copy(update={"cache_dir": root / "cache"})
