from pathlib import Path

import pytest
import torch
from fakes.tiny_corpus import NUM_LAYERS, VOCAB, write_nested_verifier, write_running_verifier
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

from eval.capture import LayerCapture
from eval.errors import VerifierError
from eval.textmodel import load_text_model

IDS = torch.arange(12).reshape(1, 12) % VOCAB


def test_a_wrapper_of_an_unknown_type_computes_what_its_text_model_does(tmp_path: Path) -> None:
    plain = write_running_verifier(tmp_path / "plain")
    nested = write_nested_verifier(tmp_path / "nested", plain)
    with torch.inference_mode():
        for kind in (AutoModel, AutoModelForCausalLM):
            one, other = (load_text_model(kind, path, torch.float32) for path in (plain, nested))
            assert torch.equal(one(IDS)[0], other(IDS)[0])


def test_a_weight_that_is_in_no_file_is_an_error_and_not_drawn_at_random(tmp_path: Path) -> None:
    path = write_running_verifier(tmp_path / "plain")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(VerifierError, match=r"found none for layers\.3\.mlp\.up_proj\.weight"):
        load_text_model(AutoModel, path, torch.float32)


def test_a_verifier_that_is_spread_by_a_device_map_computes_the_same(tmp_path: Path) -> None:
    path = write_running_verifier(tmp_path / "plain")
    ids, rows = (1, 3, NUM_LAYERS), [[1, 2, 3, 4], [5, 6]]
    plain = LayerCapture.load(path, ids, NUM_LAYERS, "float32").run(rows)
    spread = LayerCapture.load(path, ids, NUM_LAYERS, "float32", device_map="auto").run(rows)
    assert all(torch.equal(one, other) for one, other in zip(plain, spread, strict=True))


def test_what_transformers_cannot_load_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match=f"cannot load the verifier {tmp_path}") as found:
        load_text_model(AutoModel, tmp_path, torch.float32)
    assert found.value.hint is not None
    assert "must hold config, weights and tokenizer" in found.value.hint
