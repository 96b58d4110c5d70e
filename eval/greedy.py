"""A verifier in torch that answers greedily and shows its hidden states: what a replay feeds on.

For verifiers that one process can hold. A larger one answers in vLLM, and its states come from a
corpus. Shapes: B rows, T tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from eval.capture import LayerCapture, default_batch_tokens, default_device
from eval.sequences import split_by_width
from eval.textmodel import load_text_model, unloadable

Ids = Sequence[int]


class Reply(NamedTuple):
    """What the verifier says, and how it would have gone on after its end."""

    token_ids: list[int]
    """Up to the first end-of-text token, which is included, or the limit."""
    beyond: list[int]


class GreedyVerifier:
    """A loaded verifier.

    Args:
        path: Its folder.
        layer_ids: Layers whose inputs are shown; the final norm's input is added.
        num_layers: Of the verifier.
        dtype: Of the arithmetic, as torch calls it.

    Raises:
        VerifierError: transformers cannot load it.
    """

    def __init__(self, path: Path, layer_ids: Sequence[int], num_layers: int, dtype: str) -> None:
        model: Any = load_text_model(AutoModelForCausalLM, path, getattr(torch, dtype))
        self._tokenizer = _load_tokenizer(path)
        self._device = default_device()
        self._model = model.to(self._device).eval()
        self._capture = LayerCapture(model.base_model, (*layer_ids, num_layers), num_layers)
        self.context_tokens: int = model.config.get_text_config().max_position_embeddings
        """Tokens of prompt and answer together that it was made for."""
        self._stop_ids = _stop_ids(model.generation_config.eos_token_id, self._tokenizer)

    def render(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation by the chat template, ready for the next answer."""
        ids = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=False
        )
        return list(ids)

    def text(self, token_ids: Ids) -> str:
        """The text of an answer, without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def answer(self, prompts: Sequence[Ids], max_tokens: int, num_beyond: int) -> list[Reply]:
        """Greedy answers to rendered prompts, all in one batch."""
        replies = []
        for said in self.go_on(prompts, max_tokens + num_beyond):
            end = next(
                (i + 1 for i, token in enumerate(said) if token in self._stop_ids), max_tokens
            )
            end = min(end, max_tokens)
            replies.append(Reply(said[:end], said[end : end + num_beyond]))
        return replies

    def go_on(self, sequences: Sequence[Ids], num_tokens: int) -> list[list[int]]:
        """The next tokens after each sequence, greedily, past any end-of-text token."""
        longest = max(map(len, sequences))
        ids_BT = torch.zeros(len(sequences), longest, dtype=torch.long)
        is_token_BT = torch.zeros_like(ids_BT)
        for row, sequence in enumerate(sequences):
            ids_BT[row, longest - len(sequence) :] = torch.tensor(sequence)
            is_token_BT[row, longest - len(sequence) :] = 1
        with torch.inference_mode():
            return self._decode(ids_BT.to(self._device), is_token_BT.to(self._device), num_tokens)

    def states(self, sequences: Sequence[Ids]) -> list[Tensor]:
        """Hidden states [tokens, A + 1, D] of each sequence, on the CPU."""
        found: dict[int, Tensor] = {}
        lengths = [len(sequence) for sequence in sequences]
        numbers = range(len(sequences))
        for taken in split_by_width(numbers, lengths.__getitem__, default_batch_tokens()):
            batch = self._capture.run([sequences[i] for i in taken])
            found |= {i: states.clone() for i, states in zip(taken, batch, strict=True)}
        return [found[i] for i in range(len(sequences))]

    def _decode(self, ids_BT: Tensor, is_token_BT: Tensor, num_tokens: int) -> list[list[int]]:
        cache = DynamicCache()
        positions_BT = (is_token_BT.cumsum(1) - 1).clamp_min(0)
        said = []
        for _ in range(num_tokens):
            out = self._model(
                input_ids=ids_BT,
                attention_mask=is_token_BT,
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            ids_BT = out.logits[:, -1].argmax(-1, keepdim=True)
            said.append(ids_BT)
            positions_BT = positions_BT[:, -1:] + 1
            is_token_BT = torch.cat([is_token_BT, torch.ones_like(ids_BT)], 1)
        return [list(row) for row in torch.cat(said, 1).tolist()] if said else [[] for _ in ids_BT]


def _load_tokenizer(path: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise unloadable(path, error) from error


def _stop_ids(configured: int | list[int] | None, tokenizer: Any) -> frozenset[int]:
    """Tokens at which vLLM ends an answer: those of generation_config.json and the tokenizer's."""
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if i is not None)
