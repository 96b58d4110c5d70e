"""Conversations to training rows: token ids, a loss mask on the answers alone, token counts.

The folder is what speculators 0.9.0 reads as `data_path`: an arrow data set with the columns
`input_ids`, `loss_mask` and `seq_len`, and `token_freq.pt`, from which draft vocabularies are made.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import ipc
from pydantic import Field

from eval.progress import ProgressFn
from harness.config.load import Frozen
from harness.corpus.conversations import Conversation, load_conversations
from harness.corpus.manifest import (
    Manifest,
    Plan,
    begin_stage,
    finish_stage,
    hold_folder,
    require_space,
)
from harness.digests import digest_files
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import CheckError, WorkError

TOKEN_FREQ_NAME = "token_freq.pt"  # noqa: S105 - a file name, no secret
_PARTIAL_NAME = ".partial"
_BYTES_PER_TOKEN = 20
"""Two int64 columns and their offsets."""


class PrepareConfig(Frozen):
    """How rows are cut and ordered."""

    seq_length: int = Field(default=2048, ge=16)
    """Tokens per row at most; what lies beyond is cut off and counted."""
    seed: int = 0
    """Of the order of the rows: the trainer takes the last ones for validation."""


class Row(NamedTuple):
    """One training sequence; `loss_mask` is 1 where the verifier itself made the token."""

    id: str
    category: str
    input_ids: list[int]
    loss_mask: list[int]


def prepare(
    conversations_dir: Path,
    verifier: Verifier,
    out_dir: Path,
    config: PrepareConfig,
    *,
    cache_dir: Path | None = None,
    overwrite: bool = False,
    progress: ProgressFn,
) -> Manifest:
    """Writes the rows of a finished regeneration in the form that speculators' trainer reads.

    Raises:
        ConfigError: No finished regeneration, or `out_dir` holds other work.
        CheckError: The conversations were changed, or are another verifier's.
        WorkError: No row is left.
    """
    source, conversations = load_conversations(conversations_dir)
    require_verifier(source, verifier, cache_dir)
    plan = Plan(
        stage="prepare",
        inputs={"conversations": source.digest, "verifier": source.inputs["verifier"]},
        config=config.model_dump(),
    )
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            return finished
        progress("preparing", 0, source.counts["conversations"])
        rows, counts = _build_all(conversations, verifier, config, source, progress)
        require_space(out_dir, _BYTES_PER_TOKEN * counts["tokens"], "the token rows")
        names = _write(out_dir, rows)
        files = digest_files(out_dir, names)
        return finish_stage(out_dir, plan, counts, files, dict(source.origins))


def read_token_ids(folder: Path) -> list[list[int]]:
    """Token ids of every row of a prepared folder, in the order of the data set."""
    ids: list[list[int]] = []
    for path in sorted(folder.glob("*.arrow")):
        with pa.memory_map(str(path)) as source, ipc.open_stream(source) as reader:
            for batch in reader:
                ids += batch.column("input_ids").to_pylist()
    return ids


def require_verifier(source: Manifest, verifier: Verifier, cache_dir: Path | None) -> None:
    """Refuses a verifier other than the one that a stage's folder was made with.

    Raises:
        CheckError: Names both by reference and digest.
    """
    expected, found = source.inputs["verifier"], verifier_digest(verifier, cache_dir)
    if expected != found:
        raise CheckError(
            f"expected the verifier of stage {source.stage!r}, {source.origins.get('verifier')} "
            f"({expected[:12]}), found {verifier.reference} ({found[:12]})",
            "a drafter learns from its own verifier only: give the same --verifier to every stage",
        )


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


def _build_all(
    conversations: Iterator[Conversation],
    verifier: Verifier,
    config: PrepareConfig,
    source: Manifest,
    progress: ProgressFn,
) -> tuple[list[Row], dict[str, int]]:
    rows: list[Row] = []
    counts = Counter(conversations=0, rows=0, tokens=0, loss_tokens=0, cut_rows=0, dropped_rows=0)
    for done, conversation in enumerate(conversations, start=1):
        for row in build_rows(conversation):
            _require_ids(row, verifier.vocab_size)
            kept = row._replace(
                input_ids=row.input_ids[: config.seq_length],
                loss_mask=row.loss_mask[: config.seq_length],
            )
            num_loss_tokens = sum(kept.loss_mask)
            if num_loss_tokens == 0:
                counts["dropped_rows"] += 1
                continue
            rows.append(kept)
            counts["rows"] += 1
            counts["tokens"] += len(kept.input_ids)
            counts["loss_tokens"] += num_loss_tokens
            counts["cut_rows"] += len(kept.input_ids) < len(row.input_ids)
        counts["conversations"] += 1
        progress("preparing", done, source.counts["conversations"])
    if not rows:
        raise WorkError(
            f"no row is left: none of {counts['conversations']} conversations has an answer "
            f"within {config.seq_length} tokens",
            "raise --seq-length",
        )
    rows.sort(key=lambda row: hashlib.sha256(f"{config.seed}:{row.id}".encode()).digest())
    return rows, dict(counts)


def _require_ids(row: Row, vocab_size: int) -> None:
    if min(row.input_ids) < 0 or max(row.input_ids) >= vocab_size:
        raise CheckError(
            f"conversation {row.id}: expected token ids below the verifier's {vocab_size}, "
            f"found {max(row.input_ids)}",
            "regenerate the conversations with this verifier",
        )


def _write(out_dir: Path, rows: Sequence[Row]) -> tuple[str, ...]:
    """Writes all files aside, then moves them in: a kill leaves no half of a data set."""
    partial = out_dir / _PARTIAL_NAME
    shutil.rmtree(partial, ignore_errors=True)
    _write_arrow(rows, partial)
    _write_token_freq(rows, partial / TOKEN_FREQ_NAME)
    names = tuple(sorted(path.name for path in partial.iterdir()))
    for name in names:
        (partial / name).replace(out_dir / name)
    partial.rmdir()
    return names


def _write_arrow(rows: Sequence[Row], folder: Path) -> None:
    # datasets and torch take seconds to load; a finished stage needs neither.
    import datasets  # noqa: PLC0415

    datasets.disable_progress_bars()
    columns = {
        "input_ids": [row.input_ids for row in rows],
        "loss_mask": [row.loss_mask for row in rows],
        "seq_len": [len(row.input_ids) for row in rows],
        "id": [row.id for row in rows],
        "category": [row.category for row in rows],
    }
    dataset = datasets.Dataset.from_dict(columns)
    dataset.set_format(type="torch")
    dataset.save_to_disk(folder)


def _write_token_freq(rows: Iterable[Row], path: Path) -> None:
    import torch  # noqa: PLC0415 - see above

    counts = Counter(
        token
        for row in rows
        for token, is_answer in zip(row.input_ids, row.loss_mask, strict=True)
        if is_answer
    )
    torch.save({token: counts[token] for token in sorted(counts)}, path)
