from pathlib import Path
from typing import Any

import pytest
from fakes.tiny_models import AUX_LAYER_IDS, write_tiny_drafter, write_tiny_verifier

from harness.config.train import TrainConfig
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError
from harness.settings import load_settings
from harness.training.shape import (
    DraftShape,
    build_config,
    inherited_shape,
    require_aux_layers,
    resolve_shape,
)


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return Verifier.load(str(write_tiny_verifier(tmp_path / "verifier")), load_settings(tmp_path))


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.model_validate({"verifier": "v", "corpus": "c", **changes})


def test_head_dim_is_never_inferred_and_the_error_names_the_candidate(verifier: Verifier) -> None:
    with pytest.raises(ConfigError, match=r"head_dim: required.* 16 / 2 = 8") as error:
        resolve_shape(config(), verifier, AUX_LAYER_IDS)
    assert "configured with 8" in error.value.message
    assert "head_dim" in (error.value.hint or "")


def test_what_is_not_given_comes_from_the_verifier(verifier: Verifier) -> None:
    shape = resolve_shape(config(head_dim=128), verifier, AUX_LAYER_IDS)
    assert (shape.head_dim, shape.head_dim_source) == (128, "config")
    assert (shape.num_heads, shape.num_kv_heads, shape.intermediate_size) == (2, 1, 32)
    assert shape.aux_layer_ids == AUX_LAYER_IDS
    assert shape.draft_vocab_size == verifier.vocab_size
    assert shape.sliding_window is None
    assert (shape.norm_before_fc, shape.fc_norm) == (True, False)


def test_fc_norm_takes_the_place_of_norm_before_fc(verifier: Verifier) -> None:
    shape = resolve_shape(config(head_dim=8, fc_norm=True), verifier, AUX_LAYER_IDS)
    assert (shape.norm_before_fc, shape.fc_norm) == (False, True)


def test_a_verifier_without_a_dense_mlp_needs_intermediate_size(verifier: Verifier) -> None:
    sparse = verifier.model_copy(update={"intermediate_size": None})
    with pytest.raises(ConfigError, match="intermediate_size"):
        resolve_shape(config(head_dim=8), sparse, AUX_LAYER_IDS)


def test_an_odd_head_dim_is_refused(verifier: Verifier) -> None:
    with pytest.raises(ConfigError, match="even number, found 7"):
        resolve_shape(config(head_dim=7), verifier, AUX_LAYER_IDS)


def test_a_corpus_of_other_layers_is_refused(verifier: Verifier) -> None:
    shape = resolve_shape(config(head_dim=8, aux_layer_ids=[1, 2, 3]), verifier, AUX_LAYER_IDS)
    with pytest.raises(ConfigError, match=r"takes \[1, 2, 3\].*\[2, 4, 5\]"):
        require_aux_layers(shape, AUX_LAYER_IDS)


def test_a_parent_gives_its_tensors_head_dim_not_its_configs(tmp_path: Path) -> None:
    parent = Drafter.load(write_tiny_drafter(tmp_path / "parent"))
    lying = parent.model_copy(update={"head_dim_configured": 4})
    shape = inherited_shape(lying, AUX_LAYER_IDS)
    assert (shape.head_dim, shape.head_dim_source) == (8, "parent tensors")
    assert shape.draft_vocab_size == parent.draft_vocab_size


def test_the_config_states_every_fact_at_the_place_vllm_reads(verifier: Verifier) -> None:
    asked = config(head_dim=128, draft_vocab_size=32, sliding_window=64)
    shape = resolve_shape(asked, verifier, AUX_LAYER_IDS)
    document = build_config(shape, verifier, ttt_steps=5)
    layer = document["transformer_layer_config"]
    assert document["eagle_aux_hidden_state_layer_ids"] == list(AUX_LAYER_IDS)
    assert document["draft_vocab_size"] == 32
    assert layer["head_dim"] == 128
    assert layer["rope_parameters"] == verifier.rope_parameters
    assert (layer["sliding_window"], layer["layer_types"]) == (64, ["sliding_attention"])
    assert document["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5


@pytest.mark.parametrize(("aux", "stated"), [((2, 4, 5), None), ((5,), 1), ((1, 2, 4, 5), 4)])
def test_any_number_of_layers_but_three_is_told_to_vllm(
    verifier: Verifier, aux: tuple[int, ...], stated: int | None
) -> None:
    shape = resolve_shape(config(head_dim=8, draft_vocab_size=32), verifier, aux)
    layer = build_config(shape, verifier, ttt_steps=3)["transformer_layer_config"]
    assert layer.get("num_aux_hidden_states") == stated


def test_trainable_values_are_counted_as_the_tensors_have_them(tmp_path: Path) -> None:
    drafter = Drafter.load(write_tiny_drafter(tmp_path / "drafter"))
    shape: DraftShape = inherited_shape(drafter, AUX_LAYER_IDS)
    matrices = [
        header.shape[0] * header.shape[1]
        for name, header in drafter.tensors.items()
        if len(header.shape) == 2 and "lm_head" not in name
    ]
    assert shape.num_trainable == sum(matrices)
