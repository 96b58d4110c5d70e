"""K steps of a packed batch at once against the plain procedure: one entry, one token at a time."""

from typing import Any

import pytest
import torch
from fakes.drafts import build_facts, random_tensors
from torch import Tensor

from eval.draft import DraftModel
from eval.errors import SpecError
from eval.facts import DraftFacts
from eval.sequences import Row, Span, build_batches, spans_of
from eval.unroll import count_right

K = 4
FACTS = build_facts()


def build_model(facts: DraftFacts) -> DraftModel:
    random = torch.Generator().manual_seed(0)
    tensors = random_tensors(facts, random)
    embed = torch.randn(facts.vocab_size, facts.hidden_size, generator=random)
    return DraftModel(facts, tensors, verifier_embed=embed, verifier_head=embed)


def build_row(name: str, length: int, prompt: int, num_beyond: int = 0) -> Row:
    random = torch.Generator().manual_seed(length)
    ids = torch.randint(FACTS.vocab_size, (length + num_beyond,), generator=random).tolist()
    states = torch.randn(length, FACTS.num_aux + 1, FACTS.hidden_size, generator=random)
    return Row(name, "all", tuple(ids), (Span(prompt, length),), lambda: states, num_beyond)


def propose_plainly(model: DraftModel, row: Row, entry: int) -> list[int]:
    """K proposals from one entry: the whole sequence is computed anew for every token."""
    facts, ids = model.facts, torch.tensor(row.token_ids)
    with torch.inference_mode():
        hidden = model.combine(row.load_states()[None, : entry + 1, :-1])
        embed = model.embed(ids[None, 1 : entry + 2])
        proposals: list[int] = []
        for _ in range(K):
            length = hidden.shape[1]
            positions = torch.arange(length)[None]

            def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                own = torch.arange(queries.shape[1])
                seen = own[None, :] <= own[:, None]
                if facts.windows[layer] is not None:
                    seen &= own[None, :] > own[:, None] - facts.windows[layer]
                groups = facts.num_heads // facts.num_kv_heads
                return torch.nn.functional.scaled_dot_product_attention(
                    queries.transpose(1, 2),
                    keys.transpose(1, 2).repeat_interleave(groups, 1),
                    values.transpose(1, 2).repeat_interleave(groups, 1),
                    attn_mask=seen,
                ).transpose(1, 2)

            out = model.run(embed, hidden, positions, attend)
            draft_ids, fed_back = model.finish(out)
            token = int(model.ids_R[draft_ids[0, -1]])
            proposals.append(token)
            embed = torch.cat([embed, model.embed(torch.tensor([[token]]))], 1)
            hidden = torch.cat([hidden, fed_back[:, -1:]], 1)
    return proposals


VARIANTS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "two layers": {"num_layers": 2},
    "whole vocabulary": {"draft_vocab_size": FACTS.vocab_size},
    "qwen3": {"kind": "qwen3"},
    "norms": {"norm_before_fc": True, "norm_output": True, "norm_before_residual": False},
    "norm by aux state": {"fc_norm": True, "norm_output": True},
    "window": {"windows": (6,)},
    "window, two layers": {"windows": (6, None), "num_layers": 2},
    "scaled rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    },
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_packed_batch_proposes_what_one_entry_at_a_time_does(changes: dict[str, Any]) -> None:
    model = build_model(build_facts(**changes))
    rows = [build_row("a", 19, 5), build_row("b", 30, 11, num_beyond=K), build_row("c", 6, 3)]
    num_deep = 0
    for batch in build_batches(rows, 64, K):
        for row, depths in zip(batch.rows, count_right(model, batch, K), strict=True):
            begin, end = row.spans[0]
            for entry in range(begin - 1, end - 1):
                proposals = propose_plainly(model, row, entry)
                true = [*row.token_ids[entry + 2 :], *[-1] * K]
                right = [p == t for p, t in zip(proposals, true, strict=False)]
                expected = [*right, False].index(False)
                assert depths[entry] == expected
                num_deep += expected > 1
            assert all(depth == -1 for depth in depths[: begin - 1])
    assert num_deep, "no entry went beyond the first step: nothing of the later ones was tested"


def test_the_size_of_batches_changes_nothing() -> None:
    model = build_model(build_facts())
    rows = [build_row(str(length), length, 4) for length in range(8, 40, 3)]

    def depths(budget: int) -> dict[str, list[int]]:
        return {
            row.id: found[: row.num_entries].tolist()
            for batch in build_batches(rows, budget, K)
            for row, found in zip(batch.rows, count_right(model, batch, K), strict=True)
        }

    assert depths(1) == depths(100) == depths(10_000)


def test_long_sequences_are_attended_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = build_model(build_facts(windows=(9,))), [build_row("a", 40, 5)]
    (batch,) = build_batches(rows, 100, K)
    whole = count_right(model, batch, K)
    monkeypatch.setattr("eval.unroll._MOST_SCORES", 300)
    assert torch.equal(count_right(model, batch, K), whole)


def test_states_of_another_length_are_refused() -> None:
    row = build_row("a", 19, 5)
    cut = row._replace(load_states=lambda: row.load_states()[:-2])
    with pytest.raises(SpecError, match="a: expected hidden states of 19 tokens, found 17"):
        list(build_batches([cut], 64, K))


def test_spans_are_the_runs_of_the_mask() -> None:
    assert spans_of([0, 0, 1, 1, 1, 0, 1]) == (Span(2, 5), Span(6, 7))
    assert spans_of([0, 0]) == ()
