"""How well a drafter says what the verifier says, at every entry and step: its loss, its hits.

The loss is that of the trainer: the cross-entropy against the verifier's distribution within the
draft vocabulary. Every entry is followed for all steps, whether its proposals were right or not.
Shapes as in `eval.draft`; F factors of sharpness, K steps.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import linear

from eval.draft import DraftModel
from eval.facts import DraftFacts
from eval.sequences import Batch, Row, build_batches
from eval.unroll import TrueToken, count_on, count_right
from eval.verifier import VerifierParts
from eval.walk import Depths

SHARPNESS = (0.7, 0.85, 1.0, 1.2, 1.4)
"""Factors on the scores: so that no drafter wins by being less sure, each is given the best."""
_MOST_SCORES = 1 << 24
"""Scores of one pass, entries by draft vocabulary; bounds the memory."""
_LEAST_BUDGET = 256


class Subject(NamedTuple):
    """A drafter and the parts of its verifier, in one dtype on one device."""

    facts: DraftFacts
    tensors: Mapping[str, Tensor]
    parts: VerifierParts


class Answers(NamedTuple):
    """What is scored."""

    rows: Sequence[Row]
    layer_ids: tuple[int, ...]
    """Layers whose states the rows hold, in their order; the final norm's input comes last."""
    k: int
    """Steps."""


class Score(NamedTuple):
    """One row's."""

    row: Row
    depths: Depths
    """By entry: steps that were right in a row; -1 where nothing was asked."""
    losses: npt.NDArray[np.float64]
    """By factor and entry, [F,T]: nats, sum over the K steps."""


def score_answers(subject: Subject, answers: Answers) -> list[Score]:
    """Scores all entries of all rows, ordered by row id."""
    facts = subject.facts
    model = _Scoring.beside(facts, subject.tensors, subject.parts)
    parts = subject.parts.among(model.ids_R)
    columns = [answers.layer_ids.index(layer) for layer in facts.aux_layer_ids]
    columns.append(len(answers.layer_ids))
    rows = [row._replace(load_states=_Columns(row, columns)) for row in answers.rows]
    budget = max(_LEAST_BUDGET, _MOST_SCORES // facts.draft_vocab_size)
    found = []
    for batch in build_batches(rows, budget, answers.k):
        with torch.inference_mode():
            judge = _Losses(model, parts, batch)
            count_right(model, batch, answers.k, judge)
        found += [judge.score(index) for index in range(len(batch.rows))]
    return sorted(found, key=lambda score: score.row.id)


class _Columns:
    """The states of some layers out of those that a row holds."""

    def __init__(self, row: Row, columns: Sequence[int]) -> None:
        self._row, self._columns = row, list(columns)

    def __call__(self) -> Tensor:
        return self._row.load_states()[:, self._columns]


class _Scoring(DraftModel):
    """A drafter that leaves its scores behind."""

    scores_BQR: Tensor

    def finish(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._norm(hidden, "norm")
        self.scores_BQR = linear(normed, self._tensors["lm_head.weight"]).float()
        return self.scores_BQR.argmax(-1), normed if self.facts.norm_output else hidden


class _Losses:
    """Calls every draft right, so that all entries are followed, and keeps what they lost.

    The verifier's head is here that of the draft vocabulary alone.
    """

    def __init__(self, model: _Scoring, parts: VerifierParts, batch: Batch) -> None:
        self._model, self._batch = model, batch
        self._is_true = TrueToken(model, batch)
        self._wanted_BTR = parts.scores(batch.states_BTAD[:, :, -1]).float().softmax(-1)
        is_start_BT = batch.is_start_BT.to(model.device)
        self._depth_BT = torch.where(is_start_BT, 0, -1)
        self._loss_FBT = torch.zeros(len(SHARPNESS), *is_start_BT.shape, device=model.device)

    def __call__(self, step: int, entries_BQ: Tensor, draft_ids_BQ: Tensor) -> Tensor:
        ahead_BQ = entries_BQ + step + 1
        scores_BQR, wanted_BTR = self._model.scores_BQR, self._wanted_BTR
        places = ahead_BQ.clamp_max(wanted_BTR.shape[1] - 1).unsqueeze(-1)
        wanted_BQR = wanted_BTR.gather(1, places.expand(-1, -1, wanted_BTR.shape[-1]))
        hit_BQ = (wanted_BQR * scores_BQR).sum(-1)
        for index, factor in enumerate(SHARPNESS):
            loss_BQ = (scores_BQR * factor).logsumexp(-1) - factor * hit_BQ
            self._loss_FBT[index].scatter_add_(1, entries_BQ, loss_BQ)
        is_true = self._is_true(step, entries_BQ, draft_ids_BQ)
        count_on(self._depth_BT, entries_BQ, is_true, step)
        return torch.ones_like(is_true)

    def score(self, index: int) -> Score:
        """What one row lost."""
        row = self._batch.rows[index]
        depths = self._depth_BT[index, : row.num_entries].cpu().numpy()
        losses = self._loss_FBT[:, index, : row.num_entries].cpu().numpy().astype(np.float64)
        return Score(row, depths, losses)
