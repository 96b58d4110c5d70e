"""Acceptance without serving: the exact greedy speculative walk over what the verifier said.

Needs the verifier's hidden states and its greedy answers, no engine. Parity with vLLM is checked by
`eval.parity`, agreement with training by `eval.agreement`.
"""

import time
from collections.abc import Callable, Iterable, Sequence

import torch

from eval.breakdown import (
    Trace,
    draft_vocab,
    group_by_place,
    group_by_token,
    pick_examples,
    reach_of_vocab,
)
from eval.counters import AcceptanceCounts
from eval.draft import DraftModel
from eval.errors import SpecError
from eval.replayresult import (
    DrafterReplay,
    GreedyCheck,
    PromptReplay,
    ReplayRow,
)
from eval.result import ALL
from eval.sequences import Row, build_batches
from eval.speedup import Bootstrap, length_interval
from eval.tokentext import Pieces
from eval.unroll import count_right
from eval.verifier import VerifierParts
from eval.walk import count_everywhere, sum_walks, walk_row

DEFAULT_BUDGET_TOKENS = 4096
"""Entries of one pass, padding included."""
_MOST_CHECKED = 2048


def trace(
    model: DraftModel,
    rows: Sequence[Row],
    k: int,
    *,
    budget_tokens: int = DEFAULT_BUDGET_TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trace]:
    """How many of K proposals are right in a row at every entry of every row.

    Args:
        model: The drafter.
        rows: What the verifier said.
        k: Tokens proposed per draft, at most.
        budget_tokens: Entries computed at once; bounds the memory.
        progress: Told entries done and in all.

    Raises:
        SpecError: Hidden states do not fit the rows or the drafter.
    """
    _require_fit(model, rows)
    total, done, found = sum(row.num_entries for row in rows), 0, []
    for batch in build_batches(rows, budget_tokens, k):
        depths = count_right(model, batch, k).numpy()
        found += [
            Trace(row, d[: row.num_entries]) for row, d in zip(batch.rows, depths, strict=True)
        ]
        done += sum(row.num_entries for row in batch.rows)
        if progress:
            progress(done, total)
    return found


def replay_drafter(
    model: DraftModel,
    rows: Sequence[Row],
    k: int,
    bootstrap: Bootstrap,
    *,
    name: str,
    digest: str | None = None,
    pieces: Pieces | None = None,
    budget_tokens: int = DEFAULT_BUDGET_TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> DrafterReplay:
    """Everything a replay tells of one drafter, for each K up to `k`.

    Args:
        model: The drafter.
        rows: What the verifier said; rows of one id are one prompt.
        k: The largest K.
        bootstrap: How intervals are made.
        name: Of the drafter in the result.
        digest: SHA-256 root of its folder.
        pieces: Texts of single tokens, for examples; None: no examples.
        budget_tokens: Entries computed at once; bounds the memory.
        progress: Told entries done and in all.
    """
    began = time.monotonic()
    traces = trace(model, rows, k, budget_tokens=budget_tokens, progress=progress)
    replay_s = time.monotonic() - began
    prompts = _by_prompt(traces, model, k)
    categories = sorted({prompt.category for prompt in prompts})
    groups = [(ALL, prompts)]
    if len(categories) > 1:
        groups += [(c, [p for p in prompts if p.category == c]) for c in categories]
    return DrafterReplay(
        drafter=name,
        digest=digest,
        rows=tuple(
            _build_row(category, group, at, k, bootstrap)
            for category, group in groups
            for at in range(1, k + 1)
        ),
        by_position=group_by_place(traces, k),
        by_token=group_by_token(traces, model, k),
        prompts=tuple(prompts),
        examples=pick_examples(traces, k, pieces) if pieces else (),
        replay_s=replay_s,
    )


def check_greedy(rows: Iterable[Row], parts: VerifierParts) -> GreedyCheck:
    """Compares answer tokens with what the verifier says after the cached hidden states.

    Of many tokens every n-th, over all rows, so that some two thousand are checked.
    """
    rows = list(rows)
    num_tokens = sum(row.num_answer_tokens for row in rows)
    step = max(1, num_tokens // _MOST_CHECKED)
    num_checked = num_equal = num_passed = 0
    for row in rows:
        at = [i for span in row.spans for i in range(max(span.begin, 1), span.end)]
        chosen = torch.tensor(at[-num_passed % step :: step], dtype=torch.long)
        num_passed += len(at)
        if not len(chosen):
            continue
        said = parts.predict(row.load_states()[chosen - 1, -1]).cpu()
        num_checked += len(chosen)
        num_equal += int((said == torch.tensor(row.token_ids)[chosen]).sum())
    return GreedyCheck(num_checked=num_checked, num_equal=num_equal)


def _require_fit(model: DraftModel, rows: Sequence[Row]) -> None:
    if not rows:
        raise SpecError("expected answers to replay, found none")
    facts, shape = model.facts, tuple(rows[0].load_states().shape)
    expected = (facts.num_aux + 1, facts.target_hidden_size)
    if shape[1:] != expected:
        raise SpecError(
            f"{rows[0].id}: expected hidden states of {expected[0]} layers by {expected[1]} (aux "
            f"layers {', '.join(map(str, facts.aux_layer_ids))} and the last), found {shape[1:]}",
            "extract the corpus with this drafter's aux layers and verifier",
        )


def _by_prompt(traces: Sequence[Trace], model: DraftModel, k: int) -> list[PromptReplay]:
    grouped: dict[str, list[Trace]] = {}
    for found in traces:
        grouped.setdefault(found.row.id, []).append(found)
    in_vocab = draft_vocab(model)
    return [
        PromptReplay(
            id=prompt_id,
            category=own[0].row.category,
            num_tokens=sum(t.row.num_answer_tokens for t in own),
            walks=tuple(
                sum_walks([walk_row(t.row, t.depths, at) for t in own]) for at in range(1, k + 1)
            ),
            everywhere=sum((count_everywhere(t.row, t.depths, k) for t in own), AcceptanceCounts()),
            ceiling=sum_walks([walk_row(t.row, reach_of_vocab(t, in_vocab, k), k) for t in own]),
        )
        for prompt_id, own in sorted(grouped.items())
    ]


def _build_row(
    category: str, prompts: Sequence[PromptReplay], k: int, largest: int, bootstrap: Bootstrap
) -> ReplayRow:
    walks = [prompt.walks[k - 1] for prompt in prompts]
    counts = sum_walks(walks).acceptance
    counts.require_consistent()
    everywhere = [_cut(prompt.everywhere, k) for prompt in prompts]
    whole = sum(everywhere, AcceptanceCounts())
    ceiling = sum_walks([prompt.ceiling for prompt in prompts])
    drafted = [walk for walk in walks if walk.acceptance.num_drafts]
    return ReplayRow(
        k=k,
        category=category,
        num_prompts=len(prompts),
        acceptance=counts,
        acceptance_length=length_interval([walk.acceptance for walk in walks], bootstrap),
        acceptance_length_emitted=bootstrap.ratio(
            [walk.num_emitted for walk in drafted],
            [walk.acceptance.num_drafts for walk in drafted],
        )
        if drafted
        else None,
        acceptance_rate_at=counts.acceptance_rate_at if counts.num_drafts else (),
        everywhere=whole,
        everywhere_length=length_interval(everywhere, bootstrap),
        everywhere_rate_at=whole.acceptance_rate_at if whole.num_drafts else (),
        ceiling=ceiling.emitted_length if k == largest else None,
    )


def _cut(counts: AcceptanceCounts, k: int) -> AcceptanceCounts:
    """The same entries with a smaller K: positions are nested."""
    at = counts.accepted_at[:k]
    return AcceptanceCounts(
        num_drafts=counts.num_drafts,
        num_draft_tokens=k * counts.num_drafts,
        num_accepted=sum(at),
        accepted_at=at,
    )
