"""An EAGLE-3 drafter in torch, computed as vLLM 0.32 serves it: facts and tensors in, outputs out.

Source of the arithmetic: vLLM models/llama_eagle3.py and qwen3_eagle3.py, 0.32. Nothing is read
from config.json here: whoever calls says how vLLM reads it (`DraftFacts`).

Shapes: B sequences, T entries, Q entries that are followed, D hidden, A aux states, N heads,
G key-value heads, H head_dim, R draft vocabulary.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from eval.architecture import read_slots
from eval.errors import SpecError
from eval.facts import DraftFacts
from eval.verifier import VerifierParts

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer index, queries [B,Q,N,H], keys and values [B,Q,G,H] of the same entries -> [B,Q,N,H]."""


class DraftModel:
    """A drafter ready to compute.

    Args:
        facts: Its arithmetic.
        tensors: By plain name (`layers.0.mlp.up_proj.weight`); those that it lacks and may share
            are taken from the verifier.
        verifier_embed: The verifier's input embedding [V, D], for a drafter without one.
        verifier_head: The verifier's output head [V, D], for a drafter without one.
        dtype: Of all arithmetic.
        device: Where.

    Raises:
        SpecError: A tensor is missing or has another shape than the facts say.
    """

    def __init__(
        self,
        facts: DraftFacts,
        tensors: Mapping[str, Tensor],
        *,
        verifier_embed: Tensor,
        verifier_head: Tensor,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.facts = facts
        self.device = torch.device(device)
        self.dtype = dtype
        own = dict(tensors)
        own.setdefault("embed_tokens.weight", verifier_embed)
        if facts.draft_vocab_size == facts.vocab_size:
            own.setdefault("lm_head.weight", verifier_head)
        self._tensors = {
            name: tensor.to(self.device, dtype if tensor.is_floating_point() else None)
            for name, tensor in own.items()
        }
        offsets = own.get("d2t")
        ids = torch.arange(facts.draft_vocab_size)
        self.ids_R = (ids if offsets is None else ids + offsets.long()).to(self.device)
        """Verifier id of each draft id."""
        self._act = ACT2FN[facts.hidden_act]
        self._rope = _build_rope(facts).to(self.device)
        _require_shapes(self._tensors, facts)

    @classmethod
    def beside(cls, facts: DraftFacts, tensors: Mapping[str, Tensor], parts: VerifierParts) -> Self:
        """A drafter in the dtype and on the device of its verifier's parts, which it may share.

        Raises:
            SpecError: As of the class.
        """
        return cls(
            facts,
            tensors,
            verifier_embed=parts.embed_VD,
            verifier_head=parts.head_VD,
            dtype=parts.norm_D.dtype,
            device=str(parts.norm_D.device),
        )

    def combine(self, aux_BTAD: Tensor) -> Tensor:
        """The aux states of each token as one hidden state [B,T,D]."""
        facts = self.facts
        joined = aux_BTAD.to(self.device, self.dtype).flatten(-2)
        if facts.norm_before_fc:
            joined = self._norm(joined, "input_norm")
        if facts.fc_norm:
            chunks = joined.chunk(facts.num_aux, -1)
            joined = torch.cat([self._norm(x, f"fc_norm.{i}") for i, x in enumerate(chunks)], -1)
        return linear(joined, self._tensors["fc.weight"])

    def embed(self, ids_BQ: Tensor) -> Tensor:
        """Input embeddings [B,Q,D] of verifier ids."""
        return embedding(ids_BQ, self._tensors["embed_tokens.weight"])

    def first_keys(self, embed: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B,T,G,H] of the first layer: all that it needs of what is not asked."""
        inputs, _ = self._first_inputs(embed, hidden)
        return self._keys(0, inputs, positions)

    def run(self, embed: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """All layers over some entries; returns the last one's output before the final norm.

        Args:
            embed: Embeddings of the newest token, [B,Q,D].
            hidden: Combined aux states, or what the drafter itself gave a step before, [B,Q,D].
            positions: Of the entries, [B,Q].
            attend: Attention of one layer; owns what was seen before.
        """
        for layer in range(self.facts.num_layers):
            prefix = f"layers.{layer}."
            if layer == 0:
                inputs, residual = self._first_inputs(embed, hidden)
            else:
                inputs, residual = self._norm(hidden, f"{prefix}input_layernorm"), hidden
            queries = self._queries(layer, inputs, positions)
            seen = attend(layer, queries, *self._keys(layer, inputs, positions)).flatten(-2)
            residual = residual + linear(seen, self._tensors[f"{prefix}self_attn.o_proj.weight"])
            hidden = residual + self._mlp(
                prefix, self._norm(residual, f"{prefix}post_attention_layernorm")
            )
        return hidden

    def finish(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Draft ids [B,Q] of the greatest score, and the hidden state that the next step is fed."""
        normed = self._norm(hidden, "norm")
        draft_ids = linear(normed, self._tensors["lm_head.weight"]).argmax(-1)
        return draft_ids, normed if self.facts.norm_output else hidden

    def _first_inputs(self, embed: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._norm(hidden, "layers.0.hidden_norm")
        residual = normed if self.facts.norm_before_residual else hidden
        return torch.cat([self._norm(embed, "layers.0.input_layernorm"), normed], -1), residual

    def _queries(self, layer: int, inputs: Tensor, positions: Tensor) -> Tensor:
        return self._rotate(self._heads(layer, "q", inputs), positions)

    def _keys(self, layer: int, inputs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        keys = self._rotate(self._heads(layer, "k", inputs), positions)
        return keys, self._heads(layer, "v", inputs)

    def _heads(self, layer: int, letter: str, inputs: Tensor) -> Tensor:
        name = f"layers.{layer}.self_attn.{letter}_proj"
        bias = self._tensors.get(f"{name}.bias")
        flat = linear(inputs, self._tensors[f"{name}.weight"], bias)
        heads = flat.unflatten(-1, (-1, self.facts.head_dim))
        if self.facts.kind == "qwen3" and letter != "v":
            heads = self._norm(heads, f"layers.{layer}.self_attn.{letter}_norm")
        return heads

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (part.unsqueeze(-2) for part in self._rope(heads, positions))
        return heads * cos + rotate_half(heads) * sin

    def _mlp(self, prefix: str, inputs: Tensor) -> Tensor:
        weights = {n: self._tensors[f"{prefix}mlp.{n}_proj.weight"] for n in ("gate", "up", "down")}
        gated = self._act(linear(inputs, weights["gate"])) * linear(inputs, weights["up"])
        return linear(gated, weights["down"])

    def _norm(self, inputs: Tensor, name: str) -> Tensor:
        weight = self._tensors[f"{name}.weight"]
        return rms_norm(inputs, weight.shape, weight, self.facts.rms_norm_eps)


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a drafter's folder by plain name, however the format spells it.

    Raises:
        SpecError: No readable safetensors there.
    """
    found: dict[str, Tensor] = {}
    for path in sorted({slot.path for slot in read_slots(folder).values()}):
        with safe_open(path, "pt") as stream:
            for key in stream.keys():  # noqa: SIM118 - safe_open is no mapping
                name = key.removeprefix("model.").replace("midlayer.", "layers.0.")
                found[name] = stream.get_tensor(key)
    return found


def _build_rope(facts: DraftFacts) -> LlamaRotaryEmbedding:
    """Transformers' own rotary embedding, which knows every kind of scaling."""
    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=facts.num_heads * facts.head_dim,
            num_attention_heads=facts.num_heads,
            head_dim=facts.head_dim,
            max_position_embeddings=facts.max_position_embeddings,
            rope_parameters=facts.rope_parameters,
        )
    )


def _require_shapes(tensors: Mapping[str, Tensor], facts: DraftFacts) -> None:
    hidden = facts.hidden_size
    expected = {
        "fc.weight": (hidden, facts.num_aux * facts.target_hidden_size),
        "embed_tokens.weight": (facts.vocab_size, hidden),
        "lm_head.weight": (facts.draft_vocab_size, hidden),
        "layers.0.self_attn.q_proj.weight": (facts.num_heads * facts.head_dim, 2 * hidden),
        "norm.weight": (hidden,),
    }
    for name, shape in expected.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise SpecError(
                f"{name}: expected shape {shape} by config.json, found {found or 'no such tensor'}",
                "harness verify says what is wrong with this drafter",
            )
