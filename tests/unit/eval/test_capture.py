from pathlib import Path

import pytest
from transformers import AutoModel

from eval.capture import load_model
from eval.errors import VerifierError


def test_what_transformers_cannot_load_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match=f"cannot load the verifier {tmp_path}") as found:
        load_model(AutoModel, tmp_path)
    assert found.value.hint is not None
    assert "must hold config, weights and tokenizer" in found.value.hint
