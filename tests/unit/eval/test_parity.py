"""Counts by hand: a drafter that always proposes token 0 and a verifier that always says it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.drafts import build_facts, random_tensors
from fakes.measurements import make_answer, make_result, make_spec
from fakes.tiny_corpus import (
    AUX_LAYER_IDS,
    HEADS,
    HIDDEN,
    VOCAB,
    running_verifier_facts,
    write_running_verifier,
    write_words,
)
from safetensors.torch import load_file, save_file

from eval.answers import Answer
from eval.cells import Cell, CellKey
from eval.counters import count_answers
from eval.errors import SpecError
from eval.facts import VerifierFacts
from eval.parity import check_parity
from eval.parityresult import ParityReport
from eval.report import render_html
from eval.result import BenchResult
from eval.spec import DrafterSpec, Sampling, ServerSpec

FACTS = build_facts(
    hidden_size=HIDDEN,
    num_heads=HEADS,
    num_kv_heads=HEADS,
    head_dim=HIDDEN // HEADS,
    aux_layer_ids=AUX_LAYER_IDS,
    vocab_size=VOCAB,
    norm_output=True,
)
PROMPT = (5, 6, 7)
CASES = {
    "a mistake in between": ((0, 0, 9, 0, 0, 0), (0, 1, 0, 1)),
    "past the end": ((0, 0, 0), (0, 0, 0, 1)),
    "nothing right": ((9, 8, 9, 8), (3, 0, 0, 0)),
    "one token, from the prefill": ((0,), (0, 0, 0, 0)),
}
"""Answer and drafts that accept 0 to 3 tokens, K = 3."""


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> VerifierFacts:
    folder = write_running_verifier(tmp_path_factory.mktemp("verifier"))
    write_words(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = torch.zeros_like(tensors["lm_head.weight"])
    save_file(tensors, path, {"format": "pt"})
    return running_verifier_facts(folder)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its head is zero, so its first draft id wins, which is token 0."""
    folder = tmp_path_factory.mktemp("drafter")
    (folder / "config.json").write_text("{}")
    tensors = random_tensors(FACTS, torch.Generator().manual_seed(0))
    tensors["lm_head.weight"] = torch.zeros_like(tensors["lm_head.weight"])
    save_file(tensors, folder / "model.safetensors")
    return folder


def build_answer(name: str, said: tuple[int, ...], histogram: tuple[int, ...]) -> Answer:
    return make_answer(name, said, histogram, prompt=PROMPT)


def build_cell(answers: list[Answer], arm: str = "a", k: int | None = 3, block: int = 0) -> Cell:
    return Cell(
        key=CellKey(session="s", arm=arm, k=k, concurrency=1, block=block),
        answers=tuple(answers),
        counters=count_answers(answers),
        wall_s=1.0,
        started_unix_s=0.0,
        foreign_cpu_share=0.0,
    )


def build_result(drafter: Path, cells: list[Cell], **changes: Any) -> BenchResult:
    values = {
        "server": ServerSpec(verifier=Path("v"), device="cpu", dtype="float32"),
        "drafters": (DrafterSpec(name="a", path=drafter),),
        **changes,
    }
    plain = [build_answer(a.prompt_id, a.token_ids, ()) for cell in cells for a in cell.answers]
    return make_result([build_cell(plain, "baseline", None), *cells], spec=make_spec(**values))


def check(
    verifier: VerifierFacts, drafter: Path, cells: list[Cell], folder: Path, **changes: Any
) -> ParityReport:
    result = build_result(drafter, cells, **changes)
    return check_parity(result, cells, verifier, {"a": FACTS}, folder, progress=lambda *_: None)


def test_counts_are_those_of_the_server_past_the_end_as_well(
    verifier: VerifierFacts, drafter: Path, tmp_path: Path
) -> None:
    answers = [build_answer(name, said, counts) for name, (said, counts) in CASES.items()]
    cells = [build_cell(answers[:2]), build_cell(answers[2:], block=1)]
    report = check(verifier, drafter, cells, tmp_path)
    (row,) = report.rows
    assert (row.num_requests, row.num_equal, row.unequal) == (4, 4, ())
    assert row.is_passed
    assert row.replayed == row.served
    assert row.replayed.accepted_at == (3, 2, 2)
    assert report.num_answer_tokens == 14
    assert report.states_s is not None
    again = check(verifier, drafter, cells, tmp_path)
    assert again.states_s is None
    assert again.rows == report.rows


def test_a_request_that_differs_is_told_with_both_counts_and_fails_in_float32_on_a_cpu(
    verifier: VerifierFacts, drafter: Path, tmp_path: Path
) -> None:
    cells = [
        build_cell(
            [
                build_answer("good", (0, 0, 9, 0, 0, 0), (0, 1, 0, 1)),
                build_answer("bad", (0, 0, 9, 0, 0, 0), (0, 1, 1, 0)),
            ]
        )
    ]
    result = build_result(drafter, cells)
    report = check_parity(result, cells, verifier, {"a": FACTS}, tmp_path, progress=lambda *_: None)
    (row,) = report.rows
    assert (row.num_requests, row.num_equal) == (2, 1)
    (unequal,) = row.unequal
    assert (unequal.prompt_id, unequal.served, unequal.replayed) == (
        "bad",
        (0, 1, 1, 0),
        (0, 1, 0, 1),
    )
    assert not report.is_passed
    assert "1 of 2 requests equal" in row.verdict
    page = render_html(result.model_copy(update={"parity": report}))
    assert "bad turn 0: served [0, 1, 1, 0], replayed [0, 1, 0, 1]" in page


def test_elsewhere_the_replayed_length_must_lie_in_the_served_interval(
    verifier: VerifierFacts, drafter: Path, tmp_path: Path
) -> None:
    """One of eight requests counts a draft that accepted two of three."""
    other = [(0, 1, 0, 1)] * 6 + [(2, 0, 0, 1), (0, 1, 1, 0)]
    answers = [build_answer(f"p{i}", (0, 0, 9, 0, 0, 0), h) for i, h in enumerate(other)]
    server = ServerSpec(verifier=Path("v"), device="cpu", dtype="bfloat16")
    cells = [build_cell(answers)]
    inside = check(verifier, drafter, cells, tmp_path / "in", server=server)
    assert inside.dtype == "bfloat16"
    assert inside.rows[0].num_equal == 6
    assert inside.is_passed
    far = [build_answer(f"p{i}", (0, 0, 9, 0, 0, 0), (3, 0, i % 2, 0)) for i in range(8)]
    outside = check(verifier, drafter, [build_cell(far)], tmp_path / "out", server=server)
    assert not outside.is_passed
    assert "outside the served interval" in outside.rows[0].verdict


def test_a_smaller_k_in_the_engine_of_a_larger_one_is_compared_at_its_own(
    verifier: VerifierFacts, drafter: Path, tmp_path: Path
) -> None:
    said = (0, 9, 0, 0, 0)
    wide = build_cell([build_answer("p", said, (1, 0, 0, 1))])
    narrow = build_cell([build_answer("p", said, (1, 2, 0, 0))], k=1)
    result = build_result(drafter, [wide])
    report = check_parity(
        result, [wide, narrow], verifier, {"a": FACTS}, tmp_path, progress=lambda *_: None
    )
    assert {row.k: row.replayed.accepted_at for row in report.rows} == {1: (2,), 3: (1, 1, 1)}
    assert report.is_passed


def test_what_cannot_be_replayed_is_refused(
    verifier: VerifierFacts, drafter: Path, tmp_path: Path
) -> None:
    cells = [build_cell([build_answer("p", (0, 0, 0), (0, 0, 0, 1))])]
    with pytest.raises(SpecError, match="expected greedy answers, found temperature 1"):
        check(verifier, drafter, cells, tmp_path, sampling=Sampling(temperature=1.0))
    without = cells[0].answers[0].model_copy(update={"prompt_token_ids": ()})
    with pytest.raises(SpecError, match="expected the token ids of prompt and answer"):
        check(verifier, drafter, [build_cell([without])], tmp_path)
    result = build_result(drafter, cells)
    with pytest.raises(SpecError, match="answers with a drafter, found none"):
        check_parity(result, [], verifier, {"a": FACTS}, tmp_path, progress=lambda *_: None)
