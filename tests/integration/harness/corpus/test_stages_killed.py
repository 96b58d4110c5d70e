"""Stages without a journal: killed before any of their changes, they end with equal bytes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.killing import run_killed_at
from fakes.words_template import build_template, build_tokenizer

from harness.config.prompts import PromptsConfig
from harness.corpus import draftvocab
from harness.corpus.draftvocab import VocabConfig, build_vocab
from harness.corpus.promptset import collect_prompts
from harness.corpus.template import ChatTemplate
from harness.corpus.tokens import PrepareConfig, prepare
from harness.drafter.verifier import Verifier

Work = Callable[[Path], object]


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def stages(tmp_path: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> dict[str, Work]:
    template = build_template()
    monkeypatch.setattr(ChatTemplate, "load", lambda *_, **__: template)
    path = tmp_path / "set.jsonl"
    rows = [
        {"id": f"q{i}", "prompt": f"{chr(97 + i) * 9} {i}?", "response": f"It is {i}."}
        for i in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mixture = PromptsConfig.model_validate(
        {"verifier": "v", "exclude": [], "sources": [{"source": str(path)}]}
    )
    monkeypatch.setattr(draftvocab, "load_tokenizer", lambda *_, **__: build_tokenizer())
    tokens = tmp_path / "tokens"
    prepare(path, verifier, tokens, PrepareConfig(), progress=silent)
    return {
        "prompts": lambda out: collect_prompts(mixture, verifier, out, progress=silent),
        "prepare": lambda out: prepare(path, verifier, out, PrepareConfig(), progress=silent),
        "vocab": lambda out: build_vocab(tokens, verifier, out, VocabConfig(size=24)),
    }


@pytest.mark.parametrize("name", ["prompts", "prepare", "vocab"])
def test_killed_before_any_change_it_ends_with_equal_bytes(
    stages: dict[str, Work], name: str, tmp_path: Path
) -> None:
    work = stages[name]
    work(tmp_path / "whole")
    expected = (tmp_path / "whole" / "manifest.json").read_bytes()
    files = {path.name for path in (tmp_path / "whole").iterdir()}
    number, is_killed = 0, True
    while is_killed:
        out = tmp_path / f"killed{number}"
        is_killed = run_killed_at(number, out, lambda out=out: work(out))
        work(out)
        assert (out / "manifest.json").read_bytes() == expected
        assert {path.name for path in out.iterdir()} == files
        number += 1
    assert number > 8
