"""A conversation's tokens as rows to train on, cut to length, each token marked as whose it is."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from eval.progress import ProgressFn
from harness.corpus.conversations import Conversation
from harness.corpus.dialogues import Unusable
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, WorkError


class Row(NamedTuple):
    """One training sequence; `loss_mask` is 1 where the verifier itself made the token."""

    id: str
    category: str
    input_ids: list[int]
    loss_mask: list[int]


class KeptRow(NamedTuple):
    """The same, in 5 bytes a token."""

    id: str
    category: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.int8]


class Built(NamedTuple):
    """All rows in their order, what was counted, and what gave no row."""

    rows: list[KeptRow]
    counts: dict[str, int]
    dropped: list[Unusable]


class Cut(Protocol):
    """What of the configuration matters here."""

    @property
    def seq_length(self) -> int:
        """Tokens per row at most."""

    @property
    def seed(self) -> int:
        """Of the order of the rows."""


def build_rows(conversation: Conversation) -> list[Row]:
    """One row per conversation, or one per turn where the template rewrites earlier turns.

    A turn goes on in the row before it only if its prompt begins with exactly those tokens.
    """
    rows: list[Row] = []
    for turn in conversation.turns:
        prompt, answer = list(turn.prompt_token_ids), list(turn.token_ids)
        before = rows[-1] if rows else Row(conversation.id, conversation.category, [], [])
        is_continued = prompt[: len(before.input_ids)] == before.input_ids
        if rows and is_continued:
            rows.pop()
        mask = before.loss_mask if is_continued else []
        mask = mask + [0] * (len(prompt) - len(mask)) + [1] * len(answer)
        rows.append(Row(conversation.id, conversation.category, prompt + answer, mask))
    return rows


def build_all(
    conversations: Iterable[Conversation | Unusable],
    verifier: Verifier,
    cut: Cut,
    total: int,
    progress: ProgressFn,
) -> Built:
    """The rows of all conversations, in an order that only seed and ids decide.

    No row is longer than the verifier's context: what it would say beyond it is nobody's.

    Raises:
        CheckError: A token that the verifier does not have.
        WorkError: No row is left.
    """
    rows: list[KeptRow] = []
    dropped: list[Unusable] = []
    most = min(cut.seq_length, verifier.max_position_embeddings or cut.seq_length)
    counts = Counter(conversations=0, rows=0, tokens=0, loss_tokens=0, cut_rows=0, dropped_rows=0)
    for done, conversation in enumerate(conversations, start=1):
        if isinstance(conversation, Unusable):
            dropped.append(conversation)
            continue
        for row in build_rows(conversation):
            _require_ids(row, verifier.vocab_size)
            kept, reason = _cut(row, most)
            counts["cut_rows"] += reason is None and len(row.input_ids) > most
            if reason:
                counts["dropped_rows"] += 1
                dropped.append(reason)
                continue
            rows.append(kept)
            counts["rows"] += 1
            counts["tokens"] += len(kept.input_ids)
            counts["loss_tokens"] += int(kept.loss_mask.sum())
        counts["conversations"] += 1
        progress("preparing", done, total)
    if not rows:
        raise _nothing_left(dropped, counts["conversations"], most)
    rows.sort(key=lambda row: hashlib.sha256(f"{cut.seed}:{row.id}".encode()).digest())
    if num_unusable := len(dropped) - counts["dropped_rows"]:
        counts["dropped_conversations"] = num_unusable
    return Built(rows, dict(counts), dropped)


def _cut(row: Row, seq_length: int) -> tuple[KeptRow, Unusable | None]:
    kept = KeptRow(
        row.id,
        row.category,
        np.array(row.input_ids[:seq_length], dtype=np.int32),
        np.array(row.loss_mask[:seq_length], dtype=np.int8),
    )
    if kept.loss_mask.any():
        return kept, None
    if 1 in row.loss_mask:
        found = f"the answer begins behind {row.loss_mask.index(1)} tokens, a row has {seq_length}"
        return kept, Unusable(id=row.id, reason="beyond_length", detail=found)
    return kept, Unusable(id=row.id, reason="no_loss", detail="the answers have no token")


def _require_ids(row: Row, vocab_size: int) -> None:
    if row.input_ids and not 0 <= min(row.input_ids) <= max(row.input_ids) < vocab_size:
        raise CheckError(
            f"conversation {row.id}: expected token ids below the verifier's {vocab_size}, "
            f"found {max(row.input_ids)}",
            "answer the prompts with this verifier; where it was text, its tokenizer and its "
            "config.json do not belong together",
        )


def _nothing_left(dropped: list[Unusable], num_conversations: int, seq_length: int) -> WorkError:
    reasons = Counter(one.reason for one in dropped)
    found = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    example = f", as in {dropped[0].id}: {dropped[0].detail}" if dropped else ""
    return WorkError(
        f"no row is left: none of {num_conversations} conversations has an answer within "
        f"{seq_length} tokens ({found or 'none was found'}{example})",
        "raise --seq-length" if "beyond_length" in reasons else "look at the conversations",
    )
