from collections.abc import Sequence

import pytest
import torch
from fakes.drafts import build_facts, random_tensors
from fakes.replays import (
    HIDDEN,
    KNOWN,
    OTHER,
    VOCAB,
    answer_row,
    exact_parts,
    one_token_drafter,
)

from eval.draft import DraftModel
from eval.judging import JudgedRow, judge_rows
from eval.sequences import Row


@pytest.fixture
def several() -> DraftModel:
    """A drafter of random weights that may say four tokens, KNOWN and OTHER among them."""
    facts = build_facts(
        hidden_size=HIDDEN, num_heads=2, num_kv_heads=1, head_dim=4, draft_vocab_size=4
    )
    random = torch.Generator().manual_seed(1)
    ids = torch.tensor([1, KNOWN, OTHER, 6])
    tensors = {**random_tensors(facts, random), "d2t": ids - torch.arange(4)}
    embed = torch.randn(VOCAB, HIDDEN, generator=random)
    return DraftModel(facts, tensors, verifier_embed=embed, verifier_head=embed)


def judge(
    model: DraftModel, rows: Sequence[Row], num_steps: int, **budget: int
) -> dict[str, JudgedRow]:
    batches = judge_rows(model, exact_parts(), rows, num_steps, **budget)
    return {one.row.id: one for batch in batches for one in batch}


def test_a_vocabulary_of_one_token_is_right_for_the_trainer_and_not_for_a_server() -> None:
    row = answer_row([KNOWN, OTHER, KNOWN, KNOWN, OTHER])
    found = judge(one_token_drafter(), [row], 3)["p"]
    # With two prompt tokens no entry is early enough for the third step's first target.
    assert found.total.tolist() == [5, 5, 4]
    assert found.right.tolist() == [5, 4, 3]
    # Entry i proposes token i + 2 and those after it: here 3, 4, 5 and 6 are OTHER, KNOWN, ...
    assert found.served.tolist()[1:5] == [0, 2, 1, 0]
    assert (found.num_checked, found.num_greedy) == (2, 2)
    assert found.drafted.tolist() == found.said.tolist() == [0, 0, 0, 0, 0]


def test_what_is_said_in_the_first_step_is_of_every_draft(several: DraftModel) -> None:
    answer = [OTHER, KNOWN, 6, OTHER, 1, KNOWN]
    found = judge(several, [answer_row(answer)], 2)["p"]
    assert len(found.drafted) == len(found.said) == len(answer)
    # The verifier's last state spells the next token; after the end it is unknown.
    ids = several.ids_R.tolist()
    assert [ids[said] for said in found.said[:-1]] == answer[1:]
    assert len(set(found.drafted.tolist())) > 1
    right = [d == s for d, s in zip(found.drafted, found.said, strict=True)]
    assert sum(right) == found.right[0]


def test_rows_of_several_lengths_are_judged_alike_alone_and_packed(several: DraftModel) -> None:
    answers = {"short": [KNOWN], "long": [KNOWN, OTHER, 6, 1] * 2, "middle": [6, 6, KNOWN, OTHER]}
    rows = [answer_row(answer, name=name) for name, answer in answers.items()]
    packed, alone = judge(several, rows, 2), judge(several, rows, 2, budget_tokens=1)
    assert packed.keys() == alone.keys() == answers.keys()
    for name, one in packed.items():
        other = alone[name]
        assert (one.num_checked, one.num_greedy) == (other.num_checked, other.num_greedy)
        for field in ("served", "right", "total", "drafted", "said"):
            assert getattr(one, field).tolist() == getattr(other, field).tolist(), (name, field)
