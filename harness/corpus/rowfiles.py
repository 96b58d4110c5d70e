"""Prepared rows on disk: the arrow data set, the token counts, the statistics, what was dropped."""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from harness.corpus.statistics import RowFacts, Statistics, compute_statistics
from harness.corpus.statpage import render_statistics
from harness.corpus.trainrows import Built, Cut, KeptRow

TOKEN_FREQ_NAME = "token_freq.pt"  # noqa: S105 - a file name, no secret
DROPPED_NAME = "dropped.jsonl"
STATISTICS_NAME = "statistics.json"
PAGE_NAME = "statistics.html"
_PARTIAL_NAME = ".partial"
_CHUNK_ROWS = 10_000


def write_rows(out_dir: Path, built: Built, cut: Cut, vocab_size: int) -> tuple[str, ...]:
    """Writes all files aside, then moves them in: a kill leaves no half of a data set.

    Returns:
        The names of the files.
    """
    partial = out_dir / _PARTIAL_NAME
    shutil.rmtree(partial, ignore_errors=True)
    _write_arrow(built.rows, partial)
    _write_token_freq(built.rows, partial / TOKEN_FREQ_NAME)
    lines = "".join(one.model_dump_json() + "\n" for one in built.dropped)
    (partial / DROPPED_NAME).write_text(lines, encoding="utf-8")
    statistics = _compute(built, cut, vocab_size)
    (partial / STATISTICS_NAME).write_text(statistics.model_dump_json(indent=2) + "\n")
    (partial / PAGE_NAME).write_text(render_statistics(statistics), encoding="utf-8")
    names = tuple(sorted(path.name for path in partial.iterdir()))
    for name in names:
        (partial / name).replace(out_dir / name)
    partial.rmdir()
    return names


def read_batches(folder: Path) -> Iterator[pa.RecordBatch]:
    """The arrow data set of a prepared folder, in its order, from memory maps."""
    for path in sorted(folder.glob("*.arrow")):
        with pa.memory_map(str(path)) as source, ipc.open_stream(source) as reader:
            yield from reader


def read_token_ids(folder: Path) -> list[list[int]]:
    """Token ids of every row of a prepared folder, in the order of the data set."""
    return [ids for batch in read_batches(folder) for ids in batch.column("input_ids").to_pylist()]


def read_longest(folder: Path) -> int:
    """Tokens of the longest row of a prepared folder."""
    lengths = [pc.max(batch.column("seq_len")).as_py() for batch in read_batches(folder)]
    return max(int(length) for length in lengths if length is not None)


def read_categories(batch: pa.RecordBatch, missing: str) -> list[str]:
    """Of each row; `missing` for a data set from before there were any."""
    if "category" not in batch.schema.names:
        return [missing] * len(batch)
    categories: list[str] = batch.column("category").to_pylist()
    return categories


def read_rows(folder: Path) -> Iterator[KeptRow]:
    """The rows of a prepared folder, in the order of the data set."""
    for batch in read_batches(folder):
        for index, category in enumerate(read_categories(batch, "")):
            yield KeptRow(
                batch.column("id")[index].as_py(),
                category,
                batch.column("input_ids")[index].values.to_numpy().astype(np.int32),
                batch.column("loss_mask")[index].values.to_numpy().astype(np.int8),
            )


def _compute(built: Built, cut: Cut, vocab_size: int) -> Statistics:
    facts = RowFacts(
        categories=[row.category for row in built.rows],
        token_ids=[row.input_ids for row in built.rows],
        loss_masks=[row.loss_mask for row in built.rows],
    )
    return compute_statistics(
        facts,
        num_conversations=built.counts["conversations"],
        dropped=dict(sorted(Counter(one.reason for one in built.dropped).items())),
        vocab_size=vocab_size,
        batch_tokens=cut.seq_length,
    )


def _write_arrow(rows: Sequence[KeptRow], folder: Path) -> None:
    # datasets and torch take seconds to load; a finished stage needs neither.
    import datasets  # noqa: PLC0415

    datasets.disable_progress_bars()
    chunks = [rows[at : at + _CHUNK_ROWS] for at in range(0, len(rows), _CHUNK_ROWS)]
    dataset = datasets.Dataset(pa.concat_tables([_build_table(chunk) for chunk in chunks]))
    dataset.set_format(type="torch")
    dataset.save_to_disk(folder)


def _build_table(rows: Sequence[KeptRow]) -> pa.Table:
    ends = np.cumsum([len(row.input_ids) for row in rows])
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    columns = {
        name: pa.ListArray.from_arrays(
            offsets, pa.array(np.concatenate([getattr(row, name) for row in rows]), kind)
        )
        for name, kind in (("input_ids", pa.int32()), ("loss_mask", pa.int64()))
    }
    return pa.table(
        {
            **columns,
            "seq_len": pa.array([len(row.input_ids) for row in rows], pa.int64()),
            "id": [row.id for row in rows],
            "category": [row.category for row in rows],
        }
    )


def _write_token_freq(rows: Sequence[KeptRow], path: Path) -> None:
    import torch  # noqa: PLC0415 - see above

    answers = np.concatenate([row.input_ids[row.loss_mask.astype(bool)] for row in rows])
    ids, counts = np.unique(answers, return_counts=True)
    torch.save(dict(zip(ids.tolist(), counts.tolist(), strict=True)), path)
