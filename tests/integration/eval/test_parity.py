"""Real vLLM on a CPU in float32: a replay counts what the server counted, request by request.

The verifier is random and small; its drafters are trained for it, so that they accept and the
counts have content. Each property of a drafter's shape meets each other one.
"""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.memory_store import MemoryStore
from fakes.taught_drafter import teach
from fakes.tiny_corpus import (
    AUX_LAYER_IDS,
    NUM_LAYERS,
    VOCAB,
    prompt_words,
    write_running_verifier,
    write_tiny_corpus,
    write_words,
)

from eval.cells import read_cells
from eval.greedy import GreedyVerifier
from eval.parityresult import ParityRow
from eval.spec import ServerOptions
from harness.commands.benching import BenchRun, bench_drafters
from harness.config.bench import BenchConfig
from harness.config.train import TrainConfig
from harness.drafter.drafter import Drafter
from harness.settings import Settings, load_settings
from harness.tracking import names

pytestmark = pytest.mark.timeout(900)

HIDDEN, HEADS, K = 128, 4, 3
NUM_SEEN, NUM_PROMPTS, MAX_TOKENS = 8, 12, 20
VARIANTS = {
    "one layer, inferred head_dim, full vocabulary": (1, HIDDEN // HEADS, VOCAB),
    "one layer, own head_dim, reduced vocabulary": (1, 64, 48),
    "two layers, inferred head_dim, reduced vocabulary": (2, HIDDEN // HEADS, 48),
    "two layers, own head_dim, full vocabulary": (2, 64, VOCAB),
}
"""Layers, head_dim and draft vocabulary: every pair of values occurs."""


class Project(NamedTuple):
    """A folder with a verifier, its store and its drafters by variant."""

    settings: Settings
    store: MemoryStore
    verifier: Path
    drafters: dict[str, Path]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("parity")
    settings = load_settings(root).model_copy(update={"cache_dir": root / "cache"})
    verifier = write_running_verifier(
        root / "verifier", hidden=HIDDEN, heads=HEADS, kv_heads=HEADS // 2, initializer_range=0.12
    )
    write_words(verifier)
    end_some_answers(verifier)
    corpus = write_tiny_corpus(root / "corpus", verifier, num_distinct=NUM_SEEN)
    drafters = {}
    for name, (num_layers, head_dim, vocab) in VARIANTS.items():
        config = TrainConfig(
            verifier=str(verifier),
            corpus=str(corpus),
            num_layers=num_layers,
            head_dim=head_dim,
            draft_vocab_size=vocab,
            total_seq_len=128,
            lr=2e-3,
            device="cpu",
        )
        folder = root / f"drafter-{len(drafters)}"
        drafters[name] = teach(folder, config, settings, num_epochs=15).path
    return Project(settings, MemoryStore(root), verifier, drafters)


def end_some_answers(verifier: Path) -> None:
    """Takes a token that some answers hold, and others do not, for the end of text."""
    model = GreedyVerifier(verifier, AUX_LAYER_IDS, NUM_LAYERS, "float32")
    prompts = [
        model.render([{"role": "user", "content": prompt_words(number)}])
        for number in range(NUM_PROMPTS)
    ]
    said = [reply.token_ids for reply in model.answer(prompts, MAX_TOKENS, 0)]
    counts = Counter(token for ids in said for token in set(ids[2:-2]) - set(ids[:2]))
    stop = min(counts, key=lambda token: (abs(counts[token] - NUM_PROMPTS // 3), token))
    path = verifier / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": stop}))


@pytest.fixture(scope="module")
def measured(project: Project) -> BenchRun:
    path = project.settings.root_dir / "prompts.jsonl"
    lines = [
        {"id": f"p{number}", "category": "words", "prompt": prompt_words(number)}
        for number in range(NUM_PROMPTS)
    ]
    lines.append(
        {"id": "two turns", "category": "words", "turns": [prompt_words(0), prompt_words(90)]}
    )
    path.write_text("\n".join(map(json.dumps, lines)))
    config = BenchConfig(
        drafters=tuple(map(str, project.drafters.values())),
        verifier=str(project.verifier),
        prompts=str(path),
        k=(K,),
        acceptance_k=(1,),
        concurrency=(1, 4),
        max_tokens=MAX_TOKENS,
        num_warmup=1,
        is_checking_parity=True,
        server=ServerOptions(device="cpu", max_model_len=96),
    )
    return bench_drafters(config, project.settings, project.store, lambda *_: None)


def rows_of(project: Project, measured: BenchRun, name: str) -> dict[tuple[int, int], ParityRow]:
    assert measured.result.parity is not None
    reference = str(project.drafters[name])
    rows = [row for row in measured.result.parity.rows if row.drafter == reference]
    return {(row.k, row.concurrency): row for row in rows}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_request_counts_what_the_server_counted(
    project: Project, measured: BenchRun, name: str
) -> None:
    drafter = Drafter.load(project.drafters[name])
    assert (drafter.num_layers, drafter.head_dim, drafter.draft_vocab_size) == VARIANTS[name]
    rows = rows_of(project, measured, name)
    assert set(rows) == {(K, 1), (K, 4), (1, 4)}
    for row in rows.values():
        assert row.is_exact
        assert row.unequal == ()
        assert row.num_requests == row.num_equal == NUM_PROMPTS + 2
        assert row.replayed == row.served


@pytest.mark.parametrize("name", VARIANTS)
def test_the_counts_have_content(project: Project, measured: BenchRun, name: str) -> None:
    """Drafts are accepted at every position, not always, and past the end of answers as well."""
    counts = rows_of(project, measured, name)[K, 1].replayed
    first, second, third = counts.accepted_at
    assert counts.num_drafts > first > second > 0
    assert third > 0
    reference = str(project.drafters[name])
    (row,) = [
        row for row in measured.result.pooled() if (row.drafter, row.concurrency) == (reference, 1)
    ]
    assert row.acceptance == counts
    assert row.acceptance_length_emitted.value < row.acceptance_length.value


def test_some_answers_ended_and_some_were_cut(measured: BenchRun) -> None:
    reasons = {a.finish_reason for cell in read_cells(measured.out_dir) for a in cell.answers}
    assert reasons == {"stop", "length"}


def test_the_run_says_that_parity_holds(project: Project, measured: BenchRun) -> None:
    run = project.store.get_run(measured.run_id)
    num_requests = len(VARIANTS) * 3 * (NUM_PROMPTS + 2)
    assert run.tags[names.TAG_PARITY] == "passed"
    assert run.metrics[names.METRIC_PARITY_NUM_EQUAL] == num_requests
    assert run.metrics[names.METRIC_PARITY_NUM_REQUESTS] == num_requests
