"""A finished corpus as a replay reads it: one row a conversation, its states read when needed."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from eval.errors import SpecError
from eval.result import ALL
from eval.sequences import Row, spans_of, spread
from harness.corpus.hidden_states import Corpus, state_name
from harness.corpus.rowfiles import read_batches, read_categories
from harness.corpus.storage import decode


def read_rows(corpus: Corpus, first: int = 0, seq_length: int | None = None) -> list[Row]:
    """The rows of a corpus from one on, in the order of the training.

    Args:
        corpus: The corpus.
        first: Index of the first row wanted.
        seq_length: Tokens of a row at most; what lies beyond is left out.
    """
    rows: list[Row] = []
    for index, (name, category, ids, mask) in enumerate(_read_arrow(corpus.tokens_dir)):
        if index < first:
            continue
        kept = ids[:seq_length]
        rows.append(
            Row(
                id=name,
                category=category,
                token_ids=tuple(kept),
                spans=spans_of(mask[:seq_length]),
                load_states=_Loader(corpus.hidden_states_dir / state_name(index), kept),
            )
        )
    return rows


class ValidationRows(NamedTuple):
    """Rows that stand for all that a training validates on."""

    rows: list[Row]
    share: float
    """Of the answer tokens of all."""


def read_validation_rows(
    corpus: Corpus, val_ratio: float, total_seq_len: int, most_tokens: int
) -> ValidationRows:
    """The rows that a training validates on, evenly thinned to about `most_tokens` answer tokens.

    Args:
        corpus: The corpus of the training.
        val_ratio: The training's.
        total_seq_len: The training's.
        most_tokens: Answer tokens that are wanted at most.
    """
    # The trainer drops a token of each row before it cuts.
    every = read_rows(corpus, corpus.num_train_rows(val_ratio), total_seq_len + 1)
    rows = spread(every, most_tokens)
    num_tokens = sum(row.num_answer_tokens for row in every)
    share = sum(row.num_answer_tokens for row in rows) / max(1, num_tokens)
    return ValidationRows(rows, share)


class _Loader:
    """Reads one row's hidden states and proves that they are of its tokens."""

    def __init__(self, path: Path, token_ids: list[int]) -> None:
        self._path = path
        self._token_ids = token_ids

    def __call__(self) -> torch.Tensor:
        try:
            found = load_file(self._path)
        except (OSError, SafetensorError) as error:
            raise SpecError(
                f"{self._path}: no readable hidden states: {error}", "extract the corpus again"
            ) from error
        num_tokens = len(self._token_ids)
        if found["token_ids"][:num_tokens].tolist() != self._token_ids:
            raise SpecError(
                f"{self._path}: expected the hidden states of its row's {num_tokens} tokens, found "
                f"those of other tokens",
                "extract the corpus again",
            )
        return decode(found)[:num_tokens]


def _read_arrow(folder: Path) -> Iterator[tuple[str, str, list[int], list[int]]]:
    for batch in read_batches(folder):
        yield from zip(
            batch.column("id").to_pylist(),
            read_categories(batch, ALL),
            batch.column("input_ids").to_pylist(),
            batch.column("loss_mask").to_pylist(),
            strict=True,
        )
