"""A verifier's answers and states in a folder: true to the model, whole after a kill, checked."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.measurements import make_answer
from fakes.tiny_corpus import (
    AUX_LAYER_IDS,
    HIDDEN,
    NUM_LAYERS,
    prompt_words,
    running_verifier_facts,
    write_running_verifier,
    write_words,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from eval import transcripts
from eval.errors import SpecError
from eval.facts import VerifierFacts
from eval.greedy import GreedyVerifier
from eval.replay import check_greedy
from eval.sequences import Span
from eval.spec import Prompt
from eval.transcripts import TranscriptSet, read_rows, record_answers, record_prompts
from eval.verifier import VerifierParts

MAX_TOKENS, NUM_BEYOND = 8, 2
PROMPTS = (
    Prompt(id="one", category="chat", turns=(prompt_words(0),)),
    Prompt(id="two", category="code", turns=(prompt_words(1), prompt_words(2))),
    Prompt(id="three", category="chat", turns=("t5 t6",)),
)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> VerifierFacts:
    folder = write_running_verifier(tmp_path_factory.mktemp("verifier"))
    write_words(folder)
    return running_verifier_facts(folder)


def record(verifier: VerifierFacts, folder: Path, **changes: Any) -> TranscriptSet:
    values: dict[str, Any] = {
        "max_tokens": MAX_TOKENS,
        "num_beyond": NUM_BEYOND,
        "aux_layer_ids": AUX_LAYER_IDS,
        "progress": lambda *_: None,
        **changes,
    }
    prompts = values.pop("prompts", PROMPTS)
    return record_prompts(verifier, prompts, folder, **values)


@pytest.fixture(scope="module")
def recorded(verifier: VerifierFacts, tmp_path_factory: pytest.TempPathFactory) -> TranscriptSet:
    return record(verifier, tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def copied(recorded: TranscriptSet, tmp_path: Path) -> TranscriptSet:
    folder = Path(shutil.copytree(recorded.folder, tmp_path / "copied"))
    return recorded.model_copy(update={"folder": folder})


def test_answers_are_the_verifiers_own_and_go_on_past_their_end(
    verifier: VerifierFacts, recorded: TranscriptSet
) -> None:
    model = GreedyVerifier(verifier.path, AUX_LAYER_IDS, NUM_LAYERS, "float32")
    for found in recorded.transcripts:
        prompt = list(found.token_ids[: found.prompt_length])
        (said,) = model.go_on([prompt], len(found.answer_ids) + NUM_BEYOND)
        assert (*found.answer_ids, *found.beyond) == tuple(said)
    assert [(t.id, t.turn) for t in recorded.transcripts] == [
        ("one", 0),
        ("two", 0),
        ("two", 1),
        ("three", 0),
    ]
    assert recorded.states_s is not None


def test_a_later_turn_has_the_verifiers_own_answer_before_it(
    verifier: VerifierFacts, recorded: TranscriptSet
) -> None:
    model = GreedyVerifier(verifier.path, AUX_LAYER_IDS, NUM_LAYERS, "float32")
    first, second = recorded.transcripts[1:3]
    messages = [
        {"role": "user", "content": PROMPTS[1].turns[0]},
        {"role": "assistant", "content": model.text(first.answer_ids)},
        {"role": "user", "content": PROMPTS[1].turns[1]},
    ]
    assert list(second.token_ids[: second.prompt_length]) == model.render(messages)
    assert second.prompt_length > 2 * first.prompt_length


def test_states_are_those_of_the_tokens(verifier: VerifierFacts, recorded: TranscriptSet) -> None:
    rows = read_rows(recorded)
    checked = check_greedy(rows, VerifierParts.load(verifier, torch.float32))
    assert (
        checked.num_equal
        == checked.num_checked
        == sum(t.end - t.begin for r in rows for t in r.spans)
    )
    row, found = rows[2], recorded.transcripts[2]
    assert row.load_states().shape == (len(found.token_ids), len(AUX_LAYER_IDS) + 1, HIDDEN)
    assert row.spans == (Span(found.prompt_length, len(found.token_ids)),)
    assert row.num_entries == len(found.token_ids) - 1
    assert (row.id, row.category, row.num_beyond) == ("two", "code", NUM_BEYOND)


def test_an_end_of_text_token_ends_an_answer_and_is_part_of_it(
    verifier: VerifierFacts, recorded: TranscriptSet, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(verifier.path, tmp_path / "verifier"))
    plain = recorded.transcripts[0]
    stop = plain.answer_ids[3]
    end = plain.answer_ids.index(stop) + 1
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": stop}))
    found = record(verifier.model_copy(update={"path": folder}), tmp_path / "out")
    assert found.transcripts[0].answer_ids == plain.answer_ids[:end]
    assert found.transcripts[0].beyond == plain.answer_ids[end : end + NUM_BEYOND]


def test_a_finished_folder_is_read_without_the_verifier(
    verifier: VerifierFacts, copied: TranscriptSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "GreedyVerifier", None)
    again = record(verifier, copied.folder)
    assert (again.digest, again.transcripts) == (copied.digest, copied.transcripts)
    assert again.states_s is None


def test_a_kill_costs_only_the_turns_that_were_not_written(
    verifier: VerifierFacts, copied: TranscriptSet
) -> None:
    (copied.folder / "transcripts.json").unlink()
    (copied.folder / "row_1.safetensors").unlink()
    kept = copied.folder / "row_0.safetensors"
    written = kept.stat().st_mtime_ns
    told: list[tuple[str, int, int]] = []
    again = record(verifier, copied.folder, progress=lambda *now: told.append(now))
    assert kept.stat().st_mtime_ns == written
    assert again.transcripts == copied.transcripts
    assert again.digest == copied.digest
    assert [now[1:] for now in told if now[2]] == [(3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_tokens": 9}, "max_tokens: expected 9, found 8"),
        ({"aux_layer_ids": (1, 2, 3)}, r"aux_layer_ids: expected \(1, 2, 3\), found \(1, 3, 5\)"),
        ({"dtype": "bfloat16"}, "dtype: expected bfloat16, found float32"),
        ({"prompts": PROMPTS[:1]}, "source_digest"),
    ],
)
def test_a_folder_of_other_transcripts_is_refused_with_the_difference(
    verifier: VerifierFacts, copied: TranscriptSet, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(SpecError, match=text):
        record(verifier, copied.folder, **changes)
    with pytest.raises(SpecError, match="verifier_digest"):
        record(verifier.model_copy(update={"digest": "w" * 64}), copied.folder)


def change_row(folder: Path, **changes: torch.Tensor) -> Path:
    path = folder / "row_2.safetensors"
    with safe_open(path, "pt") as stream:
        metadata = stream.metadata()
    save_file({**load_file(path), **changes}, path, metadata)
    return path


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "narrow", "short", "tokens", "foreign", "lost"]
)
def test_a_damaged_row_is_named_with_the_way_out(
    verifier: VerifierFacts, copied: TranscriptSet, damage: str
) -> None:
    path = copied.folder / "row_2.safetensors"
    states = load_file(path)["hidden_states"].clone()  # the file under it is changed
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "flipped":
        raw = bytearray(path.read_bytes())
        raw[-len(states.numpy().tobytes()) // 2] ^= 1
        path.write_bytes(raw)
    elif damage == "narrow":
        change_row(copied.folder, hidden_states=states[..., :-1].contiguous())
    elif damage == "short":
        change_row(copied.folder, hidden_states=states[:-1].contiguous())
    elif damage == "tokens":
        change_row(copied.folder, token_ids=torch.zeros(len(states), dtype=torch.long))
    elif damage == "foreign":
        shutil.copy(copied.folder / "row_0.safetensors", path)
    else:
        path.unlink()
    with pytest.raises(SpecError, match=r"row_2\.safetensors") as caught:
        read_rows(copied)[2].load_states()
    assert "record again" in str(caught.value.hint)
    again = record(verifier, copied.folder)
    assert torch.equal(read_rows(again)[2].load_states(), states)


def test_a_prompt_that_leaves_no_room_is_named(
    verifier: VerifierFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = GreedyVerifier.render
    monkeypatch.setattr(GreedyVerifier, "render", lambda *a: whole(*a) * 1000)
    with pytest.raises(SpecError, match=r"one: expected at most \d+ tokens of prompt and answer"):
        record(verifier, tmp_path / "long")


def test_answers_of_a_server_are_kept_as_they_are_and_gone_on_with(
    verifier: VerifierFacts, recorded: TranscriptSet, tmp_path: Path
) -> None:
    whole = [t.token_ids for t in recorded.transcripts]
    answers = [make_answer("a", ids[-5:], prompt=ids[:-5]) for ids in whole]
    found = record_answers(
        verifier,
        answers,
        tmp_path,
        num_beyond=NUM_BEYOND,
        aux_layer_ids=AUX_LAYER_IDS,
        progress=lambda *_: None,
    )
    assert [t.token_ids for t in found.transcripts] == whole
    assert [t.beyond for t in found.transcripts] == [t.beyond for t in recorded.transcripts]
    assert [r.spans[0].end - r.spans[0].begin for r in read_rows(found)] == [5] * 4


def test_an_answer_without_token_ids_is_refused(verifier: VerifierFacts, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a turn 0: expected the token ids"):
        record_answers(
            verifier,
            [make_answer("a", (), prompt=(1, 2))],
            tmp_path,
            num_beyond=0,
            aux_layer_ids=AUX_LAYER_IDS,
            progress=lambda *_: None,
        )
