"""Where a drafter is right and where not: by place in the answer, by token, in examples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eval.draft import DraftModel
from eval.replayresult import Example, Piece, PositionRow, TokenKind
from eval.sequences import Row
from eval.tokentext import Pieces
from eval.walk import Depths, walk_drafts, walk_row

_PLACES = (8, 16, 32, 64, 128, 256)
"""Upper ends of the groups by place in the answer, in tokens."""
_NUM_EXAMPLES = 3


class Trace(NamedTuple):
    """A row and how far each of its entries got."""

    row: Row
    depths: Depths


def group_by_place(traces: Sequence[Trace], k: int) -> tuple[PositionRow, ...]:
    """Entries by how many tokens of the answer came before."""
    labels = [f"{a + 1} to {b}" for a, b in zip((0, *_PLACES), _PLACES, strict=False)]
    groups: dict[str, list[Depths]] = {label: [] for label in (*labels, f"above {_PLACES[-1]}")}
    for row, depths in traces:
        for span in row.spans:
            kept = depths[span.whole_entries(k)]
            place = np.digitize(np.arange(len(kept)), _PLACES)
            for index, label in enumerate(groups):
                groups[label].append(kept[place == index])
    return _position_rows(groups, k)


def group_by_token(traces: Sequence[Trace], model: DraftModel, k: int) -> tuple[PositionRow, ...]:
    """Entries by whether the drafter can propose the next token at all."""
    in_vocab = draft_vocab(model)
    groups: dict[str, list[Depths]] = {"in the draft vocabulary": [], "outside": []}
    for row, depths in traces:
        ids = np.asarray(row.token_ids)
        for span in row.spans:
            part = span.whole_entries(k)
            is_in = in_vocab[ids[part.start + 2 : part.stop + 2]]
            groups["in the draft vocabulary"].append(depths[part][is_in])
            groups["outside"].append(depths[part][~is_in])
    return _position_rows(groups, k)


def _position_rows(groups: dict[str, list[Depths]], k: int) -> tuple[PositionRow, ...]:
    joined = {label: np.concatenate(parts) for label, parts in groups.items() if parts}
    total = sum(map(len, joined.values()))
    rows = []
    for label, depths in joined.items():
        if len(depths):
            rates = tuple(float((depths > step).mean()) for step in range(k))
            rows.append(
                PositionRow(
                    label=label,
                    num_entries=len(depths),
                    share=len(depths) / total,
                    length=1 + sum(rates),
                    rate_at=rates,
                )
            )
    return tuple(rows)


def draft_vocab(model: DraftModel) -> npt.NDArray[np.bool_]:
    """Whether the drafter can propose each verifier token, [V]."""
    is_in = np.zeros(model.facts.vocab_size, dtype=np.bool_)
    is_in[model.ids_R.cpu().numpy()] = True
    return is_in


def reach_of_vocab(found: Trace, in_vocab: npt.NDArray[np.bool_], k: int) -> Depths:
    """Depths of a drafter that knows every token of its vocabulary."""
    ids = np.asarray(found.row.token_ids)
    is_in = np.concatenate([in_vocab[ids], np.zeros(k, dtype=np.bool_)])
    entries = np.arange(found.row.num_entries)
    steps = np.stack([is_in[np.minimum(entries + 2 + s, len(is_in) - 1)] for s in range(k)])
    depths: Depths = np.cumprod(steps, axis=0).sum(axis=0)
    return depths


def pick_examples(traces: Sequence[Trace], k: int, pieces: Pieces) -> tuple[Example, ...]:
    """The answers of the smallest and of the greatest acceptance length."""
    ranked = sorted(
        ((length, found) for found in traces if (length := _row_length(found, k)) is not None),
        key=lambda item: item[0],
    )
    picked = ranked[:_NUM_EXAMPLES]
    picked += [item for item in ranked[-_NUM_EXAMPLES:] if item not in picked]
    return tuple(_build_example(found, length, k, pieces) for length, found in picked)


def _row_length(found: Trace, k: int) -> float | None:
    return walk_row(found.row, found.depths, k).emitted_length


def _build_example(found: Trace, length: float, k: int, pieces: Pieces) -> Example:
    row = found.row
    kinds: list[TokenKind] = []
    ids: list[int] = []
    for span in row.spans:
        kinds.append("prefill")
        ids += row.token_ids[span.begin : span.end]
        for draft in walk_drafts(found.depths, span, k):
            accepted = min(draft.num_accepted, draft.num_emitted)
            kinds.extend("accepted" for _ in range(accepted))
            kinds.extend("verifier" for _ in range(draft.num_emitted - accepted))
    texts = pieces(ids)
    return Example(
        prompt_id=row.id,
        category=row.category,
        acceptance_length=length,
        pieces=tuple(Piece(text=t, kind=kind) for t, kind in zip(texts, kinds, strict=True)),
    )
