from pathlib import Path

import pytest

from harness.corpus.journal import Journal
from harness.errors import CheckError


def test_documents_come_back_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append([{"n": 1}, {"n": 2}])
        journal.append([{"n": 3, "text": "ein \n Umbruch \u2028"}])
        assert [d["n"] for d in journal.read()] == [1, 2, 3]


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_line_cut_short_at_any_byte_is_dropped_and_the_journal_goes_on(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n": 1}\n' + b'{"n": 2}\n'[:-cut])
    with Journal(path) as journal:
        assert journal.read() == [{"n": 1}]
        journal.append([{"n": 4}])
    assert path.read_bytes() == b'{"n": 1}\n{"n": 4}\n'


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n": 1}\nrubbish\n{"n": 2}\n')
    with Journal(path) as journal, pytest.raises(CheckError, match=r"journal\.jsonl:2"):
        journal.read()
