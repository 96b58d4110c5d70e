from pathlib import Path

import pytest
from fakes.drafters import build_verifier, edit_config

from eval.spec import ServerSpec
from harness.commands.benching import tie_gap_of
from harness.drafter.verifier import Verifier
from harness.settings import load_settings


@pytest.mark.parametrize(
    ("in_config", "asked", "gap"),
    [
        ("float32", "auto", 0.25),  # vLLM serves it in bfloat16
        ("float32", "float32", 0.05),
        ("float16", "auto", 0.05),
        ("float16", "bfloat16", 0.25),
    ],
)
def test_a_near_tie_is_as_wide_as_what_the_server_computes_in(
    tmp_path: Path, in_config: str, asked: str, gap: float
) -> None:
    verifier = build_verifier(tmp_path, dtype=in_config)
    assert tie_gap_of(ServerSpec(verifier=tmp_path, dtype=asked), verifier) == gap


def test_a_config_without_a_dtype_leaves_it_to_the_weights(tmp_path: Path) -> None:
    build_verifier(tmp_path)
    edit_config(tmp_path, lambda config: config.pop("dtype"))
    verifier = Verifier.load(str(tmp_path), load_settings(tmp_path))
    assert verifier.dtype is None
    assert tie_gap_of(ServerSpec(verifier=tmp_path, dtype="auto"), verifier) == 0.25
