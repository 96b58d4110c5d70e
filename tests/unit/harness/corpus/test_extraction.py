"""An extraction over a backend of a line: what memory, limits and resumption do to it."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.drafters import build_verifier

from eval.errors import MemoryShortError
from harness.corpus import extraction
from harness.corpus.batches import Budget
from harness.corpus.extraction import Extraction
from harness.corpus.extractplan import ExtractConfig, require_rows
from harness.corpus.journal import Journal
from harness.digests import write_atomic
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

ROWS = [[row % 7 + 1] * (5 + row % 4) for row in range(30)]
LAYERS = (2, 15, 27, 30)


class Tokens:
    """States that are the token ids; `most` tokens fit, `left` passes are made before a kill."""

    def __init__(self, most: int = 10**9, left: int = 10**9) -> None:
        self.most, self.left, self.shapes = most, left, list[tuple[int, int]]()

    def run(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        longest = max(map(len, rows))
        if len(rows) * longest > self.most:
            raise MemoryShortError("too many")
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.shapes.append((len(rows), longest))
        return [
            torch.tensor(row, dtype=torch.float32).repeat(4, 2, 1).permute(2, 0, 1) for row in rows
        ]

    def estimate_batch_tokens(self, verifier: Verifier) -> int:
        return 64


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return build_verifier(tmp_path / "verifier")


def run(
    folder: Path,
    verifier: Verifier,
    backend: Tokens,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_agreed: bool = False,
    batch_tokens: int | None = None,
) -> Extraction:
    @contextmanager
    def opened(*_: Any) -> Iterator[Tokens]:
        yield backend

    monkeypatch.setattr(extraction, "open_backend", opened)
    (folder / "hidden_states").mkdir(parents=True, exist_ok=True)
    with Journal(folder / "journal.jsonl") as journal:
        work = Extraction(ROWS, folder, journal, lambda *_: None, is_agreed=is_agreed)
        work.take_up()
        work.run(verifier, LAYERS, ExtractConfig(batch_tokens=batch_tokens))
    return work


def test_memory_that_ends_halves_the_budget_and_no_row_is_lost(
    tmp_path: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(tmp_path / "a", verifier, Tokens(), monkeypatch)
    backend = Tokens(most=20)
    short = run(tmp_path / "b", verifier, backend, monkeypatch)
    assert short.done == plain.done
    assert len(short.done) == len(ROWS)
    assert [budget.tokens for budget in short.budgets] == [64, 32, 16]
    assert max(rows * tokens for rows, tokens in backend.shapes) <= 20


def test_a_resumed_extraction_makes_the_passes_of_the_first_call(
    tmp_path: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Tokens(most=20)
    run(tmp_path / "whole", verifier, whole, monkeypatch)
    first, second = Tokens(most=20, left=4), Tokens(most=10**9)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", verifier, first, monkeypatch)
    done = run(tmp_path / "cut", verifier, second, monkeypatch)
    assert [*first.shapes, *second.shapes] == whole.shapes
    assert done.budgets[0] == Budget(first_batch=0, tokens=64)


def test_a_smaller_budget_counts_from_where_the_work_was_left(
    tmp_path: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Tokens(left=2), Tokens()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", verifier, first, monkeypatch)
    with pytest.raises(ConfigError, match="begun with 64 tokens a pass, asked 65"):
        run(tmp_path / "a", verifier, second, monkeypatch, batch_tokens=65)
    done = run(tmp_path / "a", verifier, second, monkeypatch, batch_tokens=16)
    assert done.budgets == [Budget(first_batch=0, tokens=64), Budget(first_batch=2, tokens=16)]
    assert len(done.done) == len(ROWS)
    assert {rows * tokens for rows, tokens in second.shapes} <= set(range(17))
    again = run(tmp_path / "a", verifier, Tokens(left=0), monkeypatch, batch_tokens=16)
    assert again.budgets == done.budgets


def test_a_disk_that_fills_up_ends_the_work_and_loses_none_of_it(
    tmp_path: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", verifier, Tokens(), monkeypatch)
    left = 11

    def write(path: Path, content: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_atomic(path, content)

    monkeypatch.setattr(extraction, "write_atomic", write)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "full", verifier, Tokens(), monkeypatch)
    left = 10**9
    second = Tokens()
    assert run(tmp_path / "full", verifier, second, monkeypatch).done == whole.done
    assert sum(rows for rows, _ in second.shapes) < len(ROWS)


def test_a_row_that_does_not_fit_alone_is_an_error(
    tmp_path: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MemoryShortError):
        run(tmp_path / "a", verifier, Tokens(most=7), monkeypatch)


def test_hours_and_gigabytes_are_not_begun_unasked(
    tmp_path: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "_UNASKED_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"hidden states of 193 tokens take 0\.0 GB") as found:
        run(tmp_path / "a", verifier, Tokens(), monkeypatch)
    assert "--yes" in str(found.value.hint)
    monkeypatch.setattr(extraction, "_UNASKED_S", -1.0)
    monkeypatch.setattr(extraction, "_UNASKED_BYTES", 10**9)
    with pytest.raises(ConfigError, match=r"tokens/s the rest takes"):
        run(tmp_path / "b", verifier, Tokens(), monkeypatch)
    kept = len(list((tmp_path / "b" / "hidden_states").iterdir()))
    assert 0 < kept < len(ROWS)
    backend = Tokens()
    assert len(run(tmp_path / "b", verifier, backend, monkeypatch, is_agreed=True).done) == 30
    assert sum(rows for rows, _ in backend.shapes) <= 30 - kept


def test_a_token_that_the_verifier_does_not_know_is_named_before_it_is_loaded(
    verifier: Verifier,
) -> None:
    with pytest.raises(
        CheckError, match=r"row 1: expected token ids from 0 to 511 .* found 1 to 512"
    ):
        require_rows([[1, 2], [1, 512]], verifier, ExtractConfig())


def test_a_row_that_is_longer_than_the_context_is_named_before_it_is_loaded(
    verifier: Verifier,
) -> None:
    most = verifier.max_position_embeddings or 0
    require_rows([[1] * most], verifier, ExtractConfig())
    with pytest.raises(CheckError, match=rf"row 1: expected at most {most} tokens .* {most + 1}"):
        require_rows([[1], [1] * (most + 1)], verifier, ExtractConfig())
    with pytest.raises(CheckError, match=rf"at most {most - 1} tokens .* with vllm"):
        require_rows([[1] * most], verifier, ExtractConfig(backend="vllm"))
