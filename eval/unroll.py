"""K draft steps from every entry of a batch at once, by the rules of vLLM's proposer.

In step s the query of entry i stands at position i + s. It sees the keys that the first step made
of the true prefix, entries 0..i, and those that it made itself since. Only entries whose proposals
were right so far are followed further: what a drafter says after a mistake is never accepted.
So the token that a followed entry is fed is always the true one, as it is in training.

Source: vLLM v1/spec_decode/llm_base_proposer.py, 0.32. Shapes as in `eval.draft`; S steps.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from eval.draft import DraftModel
from eval.sequences import Batch

Judge = Callable[[int, Tensor, Tensor], Tensor]
"""Step s, entries [B,Q] and their draft ids [B,Q] -> whether each is right, [B,Q]."""

_MOST_SCORES = 1 << 24
"""Attention scores held at once: bounds the memory of long sequences."""


def count_right(
    model: DraftModel,
    batch: Batch,
    num_steps: int,
    judge: Judge | None = None,
    *,
    is_window_fixed: bool = False,
) -> Tensor:
    """Steps that each entry is right in a row, [B,T] from 0 to `num_steps`; -1 where none began.

    Args:
        model: The drafter.
        batch: What to draft for; drafts begin where `is_start_BT` says.
        num_steps: K.
        judge: What is right; None: the proposed token is the true next one.
        is_window_fixed: A sliding window stays where the first step had it, as in speculators'
            training; else it moves with the query, as in vLLM.
    """
    with torch.inference_mode():
        return _Unroll(model, batch, is_window_fixed=is_window_fixed).run(
            num_steps, judge or TrueToken(model, batch)
        )


class TrueToken:
    """The judge of a server: the proposed token must be the one that the verifier went on with."""

    def __init__(self, model: DraftModel, batch: Batch) -> None:
        self._ids_R = model.ids_R
        self._next_BU = batch.next_ids_BU.to(model.device)

    def __call__(self, step: int, entries_BQ: Tensor, draft_ids_BQ: Tensor) -> Tensor:
        """Whether each draft id stands for the token that follows there."""
        return self._ids_R[draft_ids_BQ] == self._next_BU.gather(1, entries_BQ + step + 1)


def count_on(depth_BT: Tensor, entries_BQ: Tensor, is_right_BQ: Tensor, step: int) -> None:
    """One step more, in place, for entries that were right in all before and are right now."""
    depth_BQ = depth_BT.gather(1, entries_BQ)
    depth_BT.scatter_(1, entries_BQ, depth_BQ + (is_right_BQ & (depth_BQ == step)).long())


class _Unroll:
    def __init__(self, model: DraftModel, batch: Batch, *, is_window_fixed: bool) -> None:
        self._model = model
        self._batch = batch
        self._is_window_fixed = is_window_fixed
        self._next_BU = batch.next_ids_BU.to(model.device).clamp_min(0)
        self._prefix: dict[int, tuple[Tensor, Tensor]] = {}
        """By layer: keys and values of the first step, [B,T,G,H]."""
        self._own: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """By layer: keys and values of each later step, [B,Q,G,H]."""
        self._entries_BQ = torch.empty(0)
        self._step = 0

    def run(self, num_steps: int, judge: Judge) -> Tensor:
        is_start = self._batch.is_start_BT.to(self._model.device)
        depth_BT = torch.where(is_start, 0, -1)
        hidden = self._begin(is_start)
        is_followed = is_start.gather(1, self._entries_BQ)
        for step in range(num_steps):
            if step:
                hidden = self._advance(hidden, step)
            draft_ids, hidden = self._model.finish(hidden)
            is_right = judge(step, self._entries_BQ, draft_ids) & is_followed
            depth_BT.scatter_add_(1, self._entries_BQ, is_right.long())
            if step + 1 == num_steps or not bool(is_right.any()):
                break
            hidden, is_followed = self._follow(is_right, hidden)
        return depth_BT.cpu()

    def _begin(self, is_start: Tensor) -> Tensor:
        """The first step: keys of every entry, outputs of those that drafts begin from."""
        model, batch = self._model, self._batch
        num_entries = is_start.shape[1]
        hidden = model.combine(batch.states_BTAD[:, :num_entries, :-1])
        embed = model.embed(self._next_BU[:, :num_entries])
        every = torch.arange(num_entries, device=model.device).expand(len(batch.rows), -1)
        chosen = _pack(is_start)
        if model.facts.num_layers == 1:
            self._prefix[0] = model.first_keys(embed, hidden, every)
            self._entries_BQ = chosen
            return model.run(_take(embed, chosen), _take(hidden, chosen), chosen, self._attend)
        self._entries_BQ = every
        whole = model.run(embed, hidden, every, self._attend)
        self._entries_BQ = chosen
        return _take(whole, chosen)

    def _advance(self, hidden: Tensor, step: int) -> Tensor:
        """A later step of the entries that are followed."""
        self._step = step
        embed = self._model.embed(self._next_BU.gather(1, self._entries_BQ + step))
        return self._model.run(embed, hidden, self._entries_BQ + step, self._attend)

    def _follow(self, is_right: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Leaves all but the entries that were right behind."""
        kept = _pack(is_right)
        self._entries_BQ = self._entries_BQ.gather(1, kept)
        self._own = {
            layer: [(_take(keys, kept), _take(values, kept)) for keys, values in own]
            for layer, own in self._own.items()
        }
        return _take(hidden, kept), is_right.gather(1, kept)

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self._step:
            self._own.setdefault(layer, []).append((keys, values))
        prefix = self._prefix.setdefault(layer, (keys, values))
        per_query = prefix[0].shape[1] * queries.shape[0] * queries.shape[2]
        size = max(1, _MOST_SCORES // per_query)
        parts = [
            self._attend_part(layer, queries[:, part], prefix, part)
            for part in (slice(i, i + size) for i in range(0, queries.shape[1], size))
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _attend_part(
        self, layer: int, queries: Tensor, prefix: tuple[Tensor, Tensor], part: slice
    ) -> Tensor:
        """Softmax over the true prefix and the query's own earlier steps together."""
        num_groups = prefix[0].shape[2]
        grouped = queries.unflatten(2, (num_groups, -1)) / math.sqrt(queries.shape[-1])
        scores = torch.einsum("bqgmh,btgh->bgmqt", grouped, prefix[0])
        scores.masked_fill_(self._is_hidden(layer, part, scores.shape[-1]), -math.inf)
        own = [(k[:, part], v[:, part]) for k, v in self._own.get(layer, ())]
        own_scores = [torch.einsum("bqgmh,bqgh->bgmq", grouped, k) for k, _ in own]
        weights = torch.cat([scores, *(s.unsqueeze(-1) for s in own_scores)], -1).softmax(-1)
        seen = torch.einsum("bgmqt,btgh->bqgmh", weights[..., : scores.shape[-1]], prefix[1])
        for index, (_, value) in enumerate(own):
            weight = weights[..., scores.shape[-1] + index].movedim(-1, 1)
            seen = seen + weight.unsqueeze(-1) * value.unsqueeze(3)
        return seen.flatten(2, 3)

    def _is_hidden(self, layer: int, part: slice, num_keys: int) -> Tensor:
        """Which keys of the prefix a query does not see, [B,1,1,Q,T]."""
        entries_BQ1 = self._entries_BQ[:, part].unsqueeze(-1)
        keys_T = torch.arange(num_keys, device=entries_BQ1.device)
        is_hidden = keys_T > entries_BQ1
        window = self._model.facts.windows[layer]
        if window is not None:
            ahead = 0 if self._is_window_fixed else self._step
            is_hidden = is_hidden | (keys_T <= entries_BQ1 + ahead - window)
        return is_hidden[:, None, None]


def _pack(is_kept_BQ: Tensor) -> Tensor:
    """Indices of the kept ones, in order, filled up with others to the longest row's number."""
    most = max(1, int(is_kept_BQ.sum(1).max()))
    return (~is_kept_BQ).int().argsort(dim=1, stable=True)[:, :most]


def _take(values: Tensor, index_BQ: Tensor) -> Tensor:
    """Entries of each row by index, whatever dimensions follow."""
    tail = values.shape[2:]
    return values.gather(1, index_BQ.view(*index_BQ.shape, *[1] * len(tail)).expand(-1, -1, *tail))
