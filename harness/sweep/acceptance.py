"""What a checkpoint would accept at one K, from the held-out conversations' hidden states.

Every trial of a sweep is asked on the same rows and with the K it would be served with, so trials
of different `ttt_steps` can be compared; the trainer's own figures change their meaning with it.
"""

from pathlib import Path
from typing import NamedTuple

import torch

from eval.counters import AcceptanceCounts
from eval.draft import DraftModel, load_tensors
from eval.replay import trace
from eval.verifier import VerifierParts
from eval.walk import walk_row
from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus
from harness.corpus.rows import read_rows
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.settings import Settings
from harness.training.plan import find_folder


class Replayed(NamedTuple):
    """Acceptance length of the greedy walk; None when nothing was drafted."""

    acceptance_length: float | None
    by_prompt: dict[str, float]


class Replayer:
    """Replays checkpoints of one trial.

    Args:
        config: The training: its verifier, corpus and share of held-out rows.
        settings: Where they are.
        k: Tokens proposed per draft.
    """

    def __init__(self, config: TrainConfig, settings: Settings, k: int) -> None:
        self._verifier = Verifier.load(config.verifier, settings)
        corpus = Corpus.load(find_folder(config.corpus, settings), deep=False)
        first = int(corpus.num_rows * (1 - config.val_ratio))
        self._rows = read_rows(corpus, first, config.total_seq_len)
        facts = verifier_facts(self._verifier, corpus.verifier_digest)
        self._parts = VerifierParts.load(facts, torch.float32)
        self._k = k

    def replay(self, path: Path) -> Replayed:
        """The acceptance of a checkpoint's folder."""
        model = DraftModel(
            draft_facts(Drafter.load(path), self._verifier),
            load_tensors(path),
            verifier_embed=self._parts.embed_VD,
            verifier_head=self._parts.head_VD,
        )
        by_prompt: dict[str, AcceptanceCounts] = {}
        with torch.no_grad():
            for found in trace(model, self._rows, self._k):
                counts = walk_row(found.row, found.depths, self._k).acceptance
                before = by_prompt.get(found.row.id, AcceptanceCounts())
                by_prompt[found.row.id] = before + counts
        drafted = {name: counts for name, counts in by_prompt.items() if counts.num_drafts}
        total = sum(drafted.values(), AcceptanceCounts())
        return Replayed(
            acceptance_length=total.acceptance_length if total.num_drafts else None,
            by_prompt={name: counts.acceptance_length for name, counts in drafted.items()},
        )
