import json
from pathlib import Path
from typing import Any

import pytest
from fakes.words_template import build_template

from eval.errors import SpecError
from harness.config.prompts import PromptsConfig
from harness.corpus import promptset
from harness.corpus.promptset import PromptSet, collect_prompts, resolve_prompts
from harness.corpus.template import ChatTemplate
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError, WorkError


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def collect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_verifier: Verifier) -> Any:
    template = build_template()
    monkeypatch.setattr(ChatTemplate, "load", lambda *_, **__: template)
    monkeypatch.setattr(promptset, "verifier_digest", lambda *_: "v" * 64)
    rows = [{"id": f"q{i}", "prompt": f"Question {i} {chr(97 + i) * 9}?"} for i in range(9)]
    rows += [rows[3] | {"id": "again"}, {"id": "none", "prompt": ""}]
    lines = [*rows, {"id": "asked", "prompt": "Why?"}]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (tmp_path / "eval.jsonl").write_text('{"id": "e", "category": "c", "prompt": "why"}\n')

    def call(out: str = "out", *, overwrite: bool = False, **changes: Any) -> PromptSet:
        document = {
            "verifier": "v",
            "sources": [{"source": str(tmp_path / "set.jsonl")}],
            "exclude": [str(tmp_path / "eval.jsonl")],
            "overlap": "drop",
            "max_answer_tokens": 16,
            **changes,
        }
        config = PromptsConfig.model_validate(document)
        return collect_prompts(
            config, tiny_verifier, tmp_path / out, overwrite=overwrite, progress=silent
        )

    return call


@pytest.fixture
def tiny_verifier(tmp_path: Path) -> Verifier:
    return Verifier(
        reference="tiny", path=tmp_path, revision=None, digest=None, architectures=(),
        model_type="llama", hidden_size=8, num_layers=4, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, vocab_size=128, max_position_embeddings=128,
        rms_norm_eps=None, rope_parameters={}, dtype=None, embed_key=None, lm_head_key=None,
        is_tied=False,
    )  # fmt: skip


def test_what_is_kept_is_asked_and_what_is_not_is_listed(collect: Any, tmp_path: Path) -> None:
    counts = collect().manifest.counts
    prompts = resolve_prompts(tmp_path / "out")
    assert sorted(prompt.id for prompt in prompts) == [f"set/q{i}" for i in range(9)]
    lines = (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()
    dropped = {row["id"]: row["reason"] for row in map(json.loads, lines)}
    assert dropped == {
        "set/again": "duplicate",
        "set/none": "empty_turn",
        "set/asked": "in_evaluation",
    }
    assert (counts["prompts"], counts["dropped"], counts["dropped_duplicate"]) == (9, 3, 1)


def test_a_hub_set_keeps_its_system_messages_and_meets_every_evaluation_set(
    collect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in the layout of a hub set goes through `datasets`, as one of the hub does."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "blend"
    folder.mkdir()
    talks = [
        [("system", "Be brief."), ("human", "How far is it?"), ("gpt", "Far.")],
        [("human", "Why?"), ("gpt", "So.")],
        [("human", "How old is the sea?"), ("gpt", "Old.")],
        [("human", "Name a river."), ("gpt", "Po."), ("human", "And a lake.")],
    ]
    rows = [{"conversations": [{"from": who, "value": text} for who, text in t]} for t in talks]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "other.jsonl").write_text(
        '{"id": "o", "category": "c", "prompt": "how old is the sea"}\n'
    )
    sets = [str(tmp_path / name) for name in ("eval.jsonl", "other.jsonl")]
    counts = collect(sources=[{"source": f"hf:{folder}"}], exclude=sets).manifest.counts
    found = {
        prompt.id: (prompt.system, prompt.turns) for prompt in resolve_prompts(tmp_path / "out")
    }
    assert found == {
        "blend/0": ("Be brief.", ("How far is it?",)),
        "blend/3": (None, ("Name a river.", "And a lake.")),
    }
    assert (counts["system_messages"], counts["dropped_in_evaluation"]) == (1, 2)
    (folder / "train.jsonl").write_text('{"conversations": 1}\n{"conver')
    with pytest.raises(SpecError, match=r"split train\) cannot be had"):
        collect("again", sources=[{"source": f"hf:{folder}"}])


def test_overlap_is_refused_unless_it_may_be_dropped(collect: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)1 prompts are asked.*set/asked = e: Why"):
        collect(overlap="refuse")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_equal_work_is_equal_and_other_work_is_refused(collect: Any, tmp_path: Path) -> None:
    first = collect()
    assert collect() == first
    collect("b")
    one, other = (tmp_path / name / "manifest.json" for name in ("out", "b"))
    assert one.read_bytes() == other.read_bytes()
    with pytest.raises(ConfigError, match=r"config\.seed: there 0, asked 1"):
        collect(seed=1)
    assert collect(seed=1, overwrite=True).manifest.digest != first.manifest.digest


def test_a_set_that_grew_is_another(collect: Any, tmp_path: Path) -> None:
    collect()
    with (tmp_path / "set.jsonl").open("a") as stream:
        stream.write('{"id": "new", "prompt": "One more question?"}\n')
    with pytest.raises(ConfigError, match=r"inputs\.source set"):
        collect()


def test_nothing_left_says_why(collect: Any) -> None:
    with pytest.raises(WorkError, match=r"no prompt is left: .*10 too_short"):
        collect(filters={"min_tokens": 100})


def test_changed_prompts_are_not_asked(collect: Any, tmp_path: Path) -> None:
    collect()
    path = tmp_path / "out" / "prompts.jsonl"
    path.write_text(path.read_text().replace("Question", "question", 1))
    with pytest.raises(CheckError, match=r"prompts\.jsonl was changed"):
        resolve_prompts(tmp_path / "out")
