import json
from pathlib import Path

import pytest

from eval.architecture import read_slots
from eval.errors import SpecError
from eval.proposers import ceiling_proposers, known_proposer, write_untrained_drafter

VERIFIER = {
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "intermediate_size": 256,
    "vocab_size": 500,
    "max_position_embeddings": 1024,
}


def write_verifier(folder: Path, config: dict[str, object]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_untrained_drafter_has_the_verifiers_width_and_a_consistent_layout(
    tmp_path: Path,
) -> None:
    verifier = write_verifier(tmp_path / "v", VERIFIER | {"vocab_size": 9000})
    folder = write_untrained_drafter(verifier, tmp_path / "d")
    config = json.loads((folder / "config.json").read_text())
    slots = read_slots(folder)
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert slots["fc.weight"].shape == (128, 384)
    assert slots["layers.0.self_attn.q_proj.weight"].shape == (128, 256)
    assert slots["lm_head.weight"].shape == (8192, 128)
    assert slots["d2t"].dtype == "I64"
    assert slots["t2d"].shape == (9000,)
    assert max(slot.end for slot in slots.values()) == (folder / "model.safetensors").stat().st_size


def test_a_small_vocabulary_is_drafted_whole_and_without_tables(tmp_path: Path) -> None:
    verifier = write_verifier(tmp_path / "v", VERIFIER)
    slots = read_slots(write_untrained_drafter(verifier, tmp_path / "d"))
    assert slots["lm_head.weight"].shape == (500, 128)
    assert not slots.keys() & {"d2t", "t2d"}


def test_a_multimodal_verifiers_text_model_is_used(tmp_path: Path) -> None:
    verifier = write_verifier(tmp_path / "v", {"text_config": VERIFIER})
    folder = write_untrained_drafter(verifier, tmp_path / "d")
    assert read_slots(folder)["norm.weight"].shape == (128,)


def test_a_config_without_sizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no sizes"):
        write_untrained_drafter(write_verifier(tmp_path / "v", {}), tmp_path / "d")


def test_ceilings_accept_regardless_of_the_text() -> None:
    (one, two) = ceiling_proposers(Path("d"), (1.0, 2.5), is_cpu=False)
    assert one.is_synthetic
    assert two.name == "ceiling AL 2.5"
    assert two.speculative_config["synthetic_acceptance_length"] == 2.5


def test_on_a_cpu_one_untrained_drafter_stands_for_all_lengths() -> None:
    (one,) = ceiling_proposers(Path("d"), (1.0, 2.5), is_cpu=True)
    assert not one.is_synthetic
    assert "rejection_sample_method" not in one.speculative_config


def test_an_unknown_competitor_is_refused_with_those_that_are_known() -> None:
    assert known_proposer("ngram").speculative_config["method"] == "ngram"
    with pytest.raises(SpecError, match="ngram, suffix"):
        known_proposer("magic")
