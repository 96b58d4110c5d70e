"""A padded verifier computes what the plain one computes, to the last bit."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from harness.drafter.pad import pad_verifier
from harness.drafter.verifier import Verifier
from harness.settings import Settings


def test_logits_and_states_of_the_real_layers_are_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "plain")
    (tmp_path / "plain" / "tokenizer.json").write_text("{}")
    settings = Settings(root_dir=tmp_path, tracking_uri="sqlite://", cache_dir=tmp_path / "cache")
    verifier = Verifier.load(str(tmp_path / "plain"), settings)
    pad_verifier(verifier, 4, tmp_path / "padded", digest="d")
    ids = torch.arange(20)[None]
    plain, padded = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name)(ids, output_hidden_states=True)
        for name in ("plain", "padded")
    )
    assert len(padded.hidden_states) == 3 + 4 + 1
    assert torch.equal(plain.logits, padded.logits)
    for old, new in zip(plain.hidden_states[:3], padded.hidden_states, strict=False):
        assert torch.equal(old, new)
