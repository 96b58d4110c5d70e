"""Estimates against what trainings of SmolLM2-135M took on two CPU cores (torch 2.13, float32)."""

from pathlib import Path

import pytest

from harness.config.load import load_config
from harness.config.train import TrainConfig
from harness.drafter.verifier import Verifier
from harness.training.estimate import estimate_training
from harness.training.shape import resolve_shape

TRAIN = Path(__file__).parents[4] / "experiments" / "smollm2-135m" / "train.yaml"
MEASURED_PEAKS = (1_234_350_080, 1_235_390_464, 1_285_300_224, 1_635_475_456)
MEASURED_CHECKPOINT = 71_609_522
FACTS = {
    "reference": "smollm2", "path": Path(), "revision": None, "digest": None,
    "architectures": ("LlamaForCausalLM",), "model_type": "llama", "hidden_size": 576,
    "intermediate_size": 1536, "num_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": None, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 100000.0}, "embed_key": None, "lm_head_key": None,
    "is_tied": True,
}  # fmt: skip


def test_memory_and_checkpoint_are_within_a_quarter_of_what_was_measured() -> None:
    config = load_config(TrainConfig, TRAIN)
    shape = resolve_shape(config, Verifier.model_validate(FACTS), (2, 15, 27))
    found = estimate_training(config, shape, "cpu")
    for measured in MEASURED_PEAKS:
        assert found.memory_bytes == pytest.approx(measured, rel=0.25)
    assert found.checkpoint_bytes == pytest.approx(MEASURED_CHECKPOINT, rel=0.01)
