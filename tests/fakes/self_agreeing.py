"""A random drafter and answers whose verifier says exactly what the drafter says, at one step.

So the arithmetic that the answers were made in fits perfectly, and any other one worse.
"""

from collections.abc import Sequence

import torch
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

TRUE_FACTS = DraftFacts(
    hidden_size=HIDDEN,
    target_hidden_size=HIDDEN,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    num_aux=3,
    aux_layer_ids=(2, 4, 6),
    vocab_size=VOCAB,
    draft_vocab_size=VOCAB,
    norm_before_residual=True,
    norm_before_fc=False,
    norm_output=True,
    fc_norm=False,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    max_position_embeddings=128,
    windows=(None,),
)


class SelfAgreeing:
    """Tensors, parts of the verifier and answers made in `facts`."""

    def __init__(self, facts: DraftFacts = TRUE_FACTS) -> None:
        random = torch.Generator().manual_seed(0)
        self.embed = torch.randn(VOCAB, HIDDEN, generator=random)
        self.tensors = _tensors(random)
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


def _tensors(random: torch.Generator) -> dict[str, Tensor]:
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        f"{attention}q_proj.weight": (16, 2 * HIDDEN),
        f"{attention}k_proj.weight": (8, 2 * HIDDEN),
        f"{attention}v_proj.weight": (8, 2 * HIDDEN),
        f"{attention}o_proj.weight": (HIDDEN, 16),
        f"{mlp}gate_proj.weight": (32, HIDDEN),
        f"{mlp}up_proj.weight": (32, HIDDEN),
        f"{mlp}down_proj.weight": (HIDDEN, 32),
    }
    found = {name: 0.4 * torch.randn(*shape, generator=random) for name, shape in shapes.items()}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    return (
        found
        | {f"layers.0.{name}.weight": torch.ones(HIDDEN) for name in norms}
        | {"norm.weight": torch.ones(HIDDEN)}
    )
