"""A drafter that knows one token and always proposes it, and answers of which it is right in some.

So what a replay must count can be read off the text.
"""

from collections.abc import Sequence
from functools import cache

import torch
from fakes.drafts import build_facts, random_tensors

from eval.draft import DraftModel
from eval.replay import replay_drafter
from eval.replayresult import DrafterReplay, GreedyCheck, ReplayResult
from eval.sequences import Row, Span
from eval.speedup import Bootstrap
from eval.verifier import VerifierParts

HIDDEN, VOCAB, KNOWN, OTHER, NUM_AUX = 8, 7, 3, 5, 3
FEW = Bootstrap(num_resamples=100)


@cache
def one_token_drafter(token: int = KNOWN) -> DraftModel:
    """Proposes `token` whatever it sees."""
    facts = build_facts(
        hidden_size=HIDDEN, num_heads=2, num_kv_heads=1, head_dim=4, draft_vocab_size=1
    )
    random = torch.Generator().manual_seed(0)
    tensors = {**random_tensors(facts, random), "d2t": torch.tensor([token])}
    embed = torch.randn(VOCAB, HIDDEN, generator=random)
    return DraftModel(facts, tensors, verifier_embed=embed, verifier_head=embed)


def answer_row(
    answer: Sequence[int], *, name: str = "p", category: str = "chat", beyond: Sequence[int] = ()
) -> Row:
    """Two prompt tokens, one answer, and what the verifier would have gone on with."""
    token_ids = (0, 1, *answer, *beyond)
    num_states = len(token_ids) - len(beyond)
    random = torch.Generator().manual_seed(num_states)
    states = torch.randn(num_states, NUM_AUX + 1, HIDDEN, generator=random)
    for index in range(num_states - 1):
        states[index, -1] = torch.eye(VOCAB, HIDDEN)[token_ids[index + 1]]
    return Row(
        id=name,
        category=category,
        token_ids=token_ids,
        spans=(Span(2, 2 + len(answer)),),
        load_states=lambda: states,
        num_beyond=len(beyond),
    )


def exact_parts() -> VerifierParts:
    """A verifier whose last hidden state is the next token, spelled as one of `answer_row`."""
    eye = torch.eye(VOCAB, HIDDEN)
    return VerifierParts(eye, eye, torch.ones(HIDDEN), 1e-6)


def replay_answers(rows: Sequence[Row], k: int = 3, name: str = "a") -> DrafterReplay:
    return replay_drafter(
        one_token_drafter(),
        rows,
        k,
        FEW,
        name=name,
        digest="ab" * 32,
        pieces=lambda ids: [f" <{token}>" for token in ids],
    )


def replay_result(*drafters: DrafterReplay) -> ReplayResult:
    """A document of drafters replayed over the same answers."""
    return ReplayResult(
        source="prompts.jsonl",
        source_digest="cd" * 32,
        verifier="tiny",
        verifier_digest="ef" * 32,
        k=drafters[0].pooled().k,
        dtype="float32",
        num_sequences=2,
        num_tokens=40,
        num_answer_tokens=20,
        is_past_end_known=True,
        greedy=GreedyCheck(num_checked=20, num_equal=19),
        drafters=drafters,
        states_s=None,
        load_s=0.1,
    )
