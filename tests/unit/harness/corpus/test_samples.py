import json
from pathlib import Path

import numpy as np
import pytest

from harness.corpus.conversations import Conversation, Turn
from harness.corpus.manifest import Plan, Stage, finish_stage
from harness.corpus.rowfiles import read_rows, write_rows
from harness.corpus.samples import Choice, look_into, read_samples
from harness.corpus.tokens import PrepareConfig
from harness.corpus.trainrows import Built, KeptRow
from harness.digests import digest_files, write_atomic
from harness.errors import CheckError, ConfigError


def finish(folder: Path, stage: Stage, names: tuple[str, ...]) -> None:
    plan = Plan(stage=stage, inputs={"verifier": "v"}, config={"seed": 0})
    finish_stage(folder, plan, {"things": 2}, digest_files(folder, names), {"verifier": "tiny"})


def letters(ids: list[int]) -> str:
    return "".join(chr(token) for token in ids)


def row(key: str, text: str, mask: str) -> KeptRow:
    ids = np.array([ord(c) for c in text], dtype=np.int32)
    return KeptRow(key, "chat", ids, np.array([int(c) for c in mask], dtype=np.int8))


def test_rows_are_shown_as_text_with_their_mask(tmp_path: Path) -> None:
    rows = [row("a", "ask:yes.", "00001110"), row("b", "hi", "01")]
    counts = {"conversations": 2, "tokens": 10}
    names = write_rows(tmp_path, Built(rows, counts, []), PrepareConfig(), 200)
    finish(tmp_path, "prepare", names)
    assert [one.id for one in read_rows(tmp_path)] == ["a", "b"]
    look = look_into(tmp_path)
    assert (look.stage, look.is_finished, look.facts) == ("prepare", True, {"things": 2})
    first, second = read_samples(tmp_path, "prepare", Choice(0, 5, None), letters)
    assert [(p.text, p.has_loss) for p in first.pieces] == [
        ("ask:", False),
        ("yes", True),
        (".", False),
    ]
    assert (first.num_tokens, first.num_loss_tokens) == (8, 3)
    assert read_samples(tmp_path, "prepare", Choice(0, 1, "b"), letters) == [second]
    assert read_samples(tmp_path, "prepare", Choice(1, 1, None), letters) == [second]
    with pytest.raises(ConfigError, match="a sample of id 'zz', found none"):
        read_samples(tmp_path, "prepare", Choice(0, 1, "zz"), letters)


def turn(answer: str, finish_reason: str) -> Turn:
    return Turn(
        question="why?",
        answer=answer,
        reasoning="hm",
        prompt_token_ids=(1,),
        token_ids=(2, 3),
        finish_reason=finish_reason,
    )


def test_conversations_show_thoughts_and_what_was_cut_off(tmp_path: Path) -> None:
    said = Conversation(id="c", category="chat", system="Be brief.", turns=(turn("so", "length"),))
    write_atomic(tmp_path / "conversations.jsonl", said.model_dump_json() + "\n")
    finish(tmp_path, "regenerate", ("conversations.jsonl",))
    (sample,) = read_samples(tmp_path, "regenerate", Choice(0, 3, None), None)
    text = ["[Be brief.]\n", "why?\n", "(hm)\n", "so ... (cut off)\n"]
    assert [p.text for p in sample.pieces] == text
    assert [p.has_loss for p in sample.pieces] == [False, False, True, True]


def test_a_stage_under_way_tells_how_far_it_is(tmp_path: Path) -> None:
    plan = Plan(stage="regenerate", inputs={}, config={"max_tokens": 4})
    write_atomic(tmp_path / "plan.json", plan.model_dump_json())
    said = Conversation(id="c", category="chat", turns=(turn("so", "length"),) * 2)
    lines = [{"answered": said.model_dump()}, {"refused": {"prompt_id": "d"}}]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"answer'
    write_atomic(tmp_path / "journal.jsonl", text)
    look = look_into(tmp_path)
    assert not look.is_finished
    assert look.facts == {
        "answered": 1,
        "refused": 1,
        "answer_tokens": 4,
        "truncated_answers": 2,
    }


def test_what_is_no_stage_or_was_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a folder of harness data"):
        look_into(tmp_path)
    write_atomic(tmp_path / "x", "x")
    finish(tmp_path, "prompts", ("x",))
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"things": 2', '"things": 3'))
    with pytest.raises(CheckError, match="was changed after it was written"):
        look_into(tmp_path)
