"""A random drafter and answers whose verifier says exactly what the drafter says, at one step.

So the arithmetic that the answers were made in fits perfectly, and any other one worse.
"""

from collections.abc import Sequence

import torch
from fakes.drafts import build_facts, random_tensors
from torch import Tensor

from eval.draft import DraftModel
from eval.facts import DraftFacts
from eval.scoring import Answers, Subject
from eval.sequences import Row, Span, build_batches
from eval.unroll import count_right
from eval.verifier import VerifierParts

HIDDEN, VOCAB, NUM_LAYERS = 16, 40, 8
LAYER_IDS = (0, 1, 2, 3, 4, 5, 6, 7, 8)
NUM_PROMPTS, NUM_TOKENS = 12, 40

TRUE_FACTS = build_facts(
    hidden_size=HIDDEN,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    aux_layer_ids=(2, 4, 6),
    vocab_size=VOCAB,
    draft_vocab_size=VOCAB,
    norm_output=True,
    rope_parameters={"rope_type": "default", "rope_theta": 100.0},
)


class SelfAgreeing:
    """Tensors, parts of the verifier and answers made in `facts`."""

    def __init__(self, facts: DraftFacts = TRUE_FACTS) -> None:
        random = torch.Generator().manual_seed(0)
        self.embed = torch.randn(VOCAB, HIDDEN, generator=random)
        self.tensors = random_tensors(facts, random, scale=2, gain_spread=0)
        head = self.tensors["lm_head.weight"]
        self.parts = VerifierParts(self.embed, head, torch.ones(HIDDEN), 1e-12)
        rows = [_row(number, random) for number in range(NUM_PROMPTS)]
        columns = [LAYER_IDS.index(i) for i in facts.aux_layer_ids]
        model = _Recording(facts, self.tensors, verifier_embed=self.embed, verifier_head=head)
        self.answers = Answers([model.agree(row, columns) for row in rows], LAYER_IDS, 1)

    def subject(self, facts: DraftFacts, **tensors: Tensor) -> Subject:
        """The drafter as another config says, perhaps with other tensors."""
        return Subject(facts, {**self.tensors, **tensors}, self.parts)


class _Recording(DraftModel):
    normed: Tensor

    def finish(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        ids, self.normed = super().finish(hidden)
        return ids, self.normed

    def agree(self, row: Row, columns: Sequence[int]) -> Row:
        """The row with last hidden states from which the verifier speaks as this drafter."""
        every = row.load_states()
        own = row._replace(load_states=lambda: every[:, [*columns, len(LAYER_IDS)]])
        (batch,) = build_batches([own], 1000, 1)
        count_right(self, batch, 1)
        every[1:-1, -1] = self.normed[0, : NUM_TOKENS - 2]
        return row._replace(load_states=lambda: every)


def _row(number: int, random: torch.Generator) -> Row:
    tokens = torch.randint(VOCAB, (NUM_TOKENS,), generator=random).tolist()
    # Layers next to one another are alike, as in a real verifier.
    states = torch.randn(NUM_TOKENS, len(LAYER_IDS) + 1, HIDDEN, generator=random).cumsum(1)
    return Row(str(number), "chat", tuple(tokens), (Span(1, NUM_TOKENS),), lambda: states)
