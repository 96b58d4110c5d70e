"""Rows and hidden states against transformers itself and against speculators' own reader."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hs_connectors import FileTransfer
from hs_connectors.transfer import FP8Transfer
from safetensors.torch import load_file, save_file
from speculators.train.data import ArrowDataset, CollateFn
from transformers import AutoModelForCausalLM

from eval.errors import VerifierError
from harness.corpus.check import check_corpus, repair_corpus
from harness.corpus.conversations import CONVERSATIONS_NAME, Conversation, Turn
from harness.corpus.extraction import extract
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.hidden_states import Corpus
from harness.corpus.manifest import Manifest, Plan, finish_stage
from harness.corpus.rowfiles import read_token_ids
from harness.corpus.rows import read_rows
from harness.corpus.tokens import PrepareConfig, prepare
from harness.digests import digest_files
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import CheckError, ConfigError
from harness.settings import load_settings

NUM_LAYERS, HIDDEN, VOCAB = 8, 16, 256
BATCHES = ExtractConfig(batch_tokens=64)


def silent(text: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def conversations_dir(verifier: Verifier, tmp_path: Path) -> Path:
    """Twenty-four answered prompts of 5 to 40 tokens."""
    folder = tmp_path / "conversations"
    folder.mkdir()
    random = torch.Generator().manual_seed(1)
    lines = []
    for index in range(24):
        length = int(torch.randint(5, 40, (1,), generator=random))
        ids = torch.randint(3, VOCAB, (length,), generator=random).tolist()
        turn = Turn(
            question="q",
            answer="a",
            prompt_token_ids=tuple(ids[:3]),
            token_ids=tuple(ids[3:]),
            finish_reason="stop",
        )
        lines.append(Conversation(id=f"c{index}", category="chat", turns=(turn,)).model_dump_json())
    (folder / CONVERSATIONS_NAME).write_text("\n".join(lines) + "\n")
    plan = Plan(
        stage="regenerate",
        inputs={"prompts": "p", "verifier": verifier_digest(verifier)},
        config={},
    )
    files = digest_files(folder, [CONVERSATIONS_NAME])
    finish_stage(folder, plan, {"conversations": 24}, files, {"verifier": "tiny"})
    return folder


@pytest.fixture
def tokens_dir(conversations_dir: Path, verifier: Verifier, tmp_path: Path) -> Path:
    prepare(conversations_dir, verifier, tmp_path / "tokens", PrepareConfig(), progress=silent)
    return tmp_path / "tokens"


@pytest.fixture
def run(tokens_dir: Path, verifier: Verifier, tmp_path: Path) -> Callable[..., Manifest]:
    def call(out: str = "corpus", config: ExtractConfig = BATCHES, **more: bool) -> Manifest:
        return extract(tokens_dir, verifier, tmp_path / out, config, progress=silent, **more)

    return call


def test_rows_read_by_the_trainer_are_the_conversations(
    conversations_dir: Path, tokens_dir: Path
) -> None:
    lines = (conversations_dir / CONVERSATIONS_NAME).read_text().splitlines()
    turns = {c.id: c.turns[0] for c in map(Conversation.model_validate_json, lines)}
    dataset = ArrowDataset(max_len=64, datapath=str(tokens_dir), on_missing="skip")
    assert len(dataset) == 24
    order = [row["id"] for row in dataset.data]
    assert sorted(order) == sorted(turns)
    assert order != sorted(order, key=lambda key: int(key[1:]))
    for row in dataset.data:
        turn = turns[row["id"]]
        assert row["input_ids"].tolist() == [*turn.prompt_token_ids, *turn.token_ids]
        assert row["loss_mask"].tolist() == [0, 0, 0] + [1] * len(turn.token_ids)
        assert row["input_ids"].dtype == row["loss_mask"].dtype == torch.int64
        assert row["seq_len"] == len(row["input_ids"])
    assert dataset.approx_lengths == [len(row["input_ids"]) for row in dataset.data]
    counted = torch.load(tokens_dir / "token_freq.pt", weights_only=True)
    answers = [token for turn in turns.values() for token in turn.token_ids]
    assert counted == {token: answers.count(token) for token in set(answers)}


def test_preparing_twice_gives_the_same_bytes(
    conversations_dir: Path, tokens_dir: Path, verifier: Verifier, tmp_path: Path
) -> None:
    again = prepare(conversations_dir, verifier, tmp_path / "b", PrepareConfig(), progress=silent)
    assert (tmp_path / "b" / "manifest.json").read_bytes() == (
        tokens_dir / "manifest.json"
    ).read_bytes()
    assert (
        prepare(conversations_dir, verifier, tmp_path / "b", PrepareConfig(), progress=silent)
        == again
    )


def test_long_rows_are_cut_and_rows_without_an_answer_dropped(
    conversations_dir: Path, verifier: Verifier, tmp_path: Path
) -> None:
    config = PrepareConfig(seq_length=16)
    counts = prepare(conversations_dir, verifier, tmp_path / "t", config, progress=silent).counts
    lengths = [len(ids) for ids in read_token_ids(tmp_path / "t")]
    assert max(lengths) == 16
    assert 0 < counts["cut_rows"] <= lengths.count(16)
    assert counts["tokens"] == sum(lengths)
    assert counts["loss_tokens"] == sum(lengths) - 3 * len(lengths)


def test_the_answers_of_another_verifier_are_refused(
    conversations_dir: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    other_dir = tmp_path / "other"
    other_dir.mkdir()
    for path in tiny_model_dir.iterdir():
        (other_dir / path.name).write_bytes(path.read_bytes())
    (other_dir / "tokenizer.json").write_text("{ }")
    other = Verifier.load(str(other_dir), load_settings())
    with pytest.raises(CheckError, match=r"expected the verifier of stage 'regenerate', tiny"):
        prepare(conversations_dir, other, tmp_path / "t", PrepareConfig(), progress=silent)


def test_states_are_those_of_a_plain_forward_pass(
    run: Callable[..., Manifest], tiny_model_dir: Path, tmp_path: Path
) -> None:
    run()
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    into_norm: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda module, args: into_norm.append(args[0]))
    for row, ids in enumerate(read_token_ids(tmp_path / "corpus" / "tokens")):
        found = load_file(tmp_path / "corpus" / "hidden_states" / f"hs_{row}.safetensors")
        with torch.inference_mode():
            plain = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected = torch.stack([*(plain[i][0] for i in (2, 4, 5)), into_norm.pop()[0]], dim=1)
        assert found["token_ids"].tolist() == ids
        assert found["hidden_states"].dtype == torch.float32
        assert found["hidden_states"].shape == (len(ids), 4, HIDDEN)
        torch.testing.assert_close(found["hidden_states"], expected, rtol=1e-4, atol=1e-4)


def test_the_trainer_reads_a_finished_corpus(run: Callable[..., Manifest], tmp_path: Path) -> None:
    manifest = run()
    corpus = Corpus.load(tmp_path / "corpus")
    assert corpus.digest == manifest.digest
    assert corpus.aux_layer_ids == (2, 4, 5)
    assert (corpus.num_conversations, corpus.num_rows) == (24, 24)
    dataset = ArrowDataset(
        max_len=64,
        datapath=str(corpus.tokens_dir),
        transfer=FileTransfer(corpus.hidden_states_dir),
        on_missing="raise",
        hidden_states_dtype=torch.float32,
    )
    samples = [dataset[index] for index in range(len(dataset))]
    assert sum(len(sample["input_ids"]) for sample in samples) == corpus.num_tokens
    assert sum(int(sample["loss_mask"].sum()) for sample in samples) == corpus.num_loss_tokens
    assert max(len(sample["input_ids"]) for sample in samples) == corpus.longest_row_tokens
    batch = CollateFn(max_len=64, hidden_size=HIDDEN, dtype=torch.float32)(samples[:2])
    assert batch["hidden_states"].shape == (1, 64, 3 * HIDDEN)
    assert batch["verifier_last_hidden_states"].shape == (1, 64, HIDDEN)


def test_lost_files_are_made_again_with_the_same_bytes(
    run: Callable[..., Manifest], tmp_path: Path
) -> None:
    undisturbed = run("undisturbed")
    run()
    folder = tmp_path / "corpus"
    lost = ["hidden_states/hs_3.safetensors", "hidden_states/hs_17.safetensors"]
    entries = [f for f in undisturbed.files.files if f.name.startswith("hidden_states/")]
    (folder / "manifest.json").unlink()
    (folder / lost[0]).unlink()
    (folder / lost[1]).write_bytes(b"half")
    journal = [
        f'{{"row": {f.name.split("_")[-1].split(".")[0]}, "file": {f.model_dump_json()}}}\n'
        for f in entries
    ]
    (folder / "journal.jsonl").write_text("".join(journal))
    assert run() == undisturbed


def test_a_changed_state_is_refused_by_file_and_stage(
    run: Callable[..., Manifest], tmp_path: Path
) -> None:
    run()
    path = tmp_path / "corpus" / "hidden_states" / "hs_5.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    Corpus.load(tmp_path / "corpus", deep=False)
    with pytest.raises(CheckError, match=r"extract: .*hs_5\.safetensors was changed"):
        Corpus.load(tmp_path / "corpus")


def damage(folder: Path) -> dict[int, str]:
    """A fault of each kind among the states of a corpus; what should be found, by row."""
    states = folder / "hidden_states"
    (states / "hs_1.safetensors").unlink()
    cut = states / "hs_4.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    (states / "hs_7.safetensors").write_bytes((states / "hs_8.safetensors").read_bytes())
    found = load_file(states / "hs_11.safetensors")
    save_file({**found, "token_ids": found["token_ids"] ^ 1}, states / "hs_11.safetensors")
    found = load_file(states / "hs_13.safetensors")
    found["hidden_states"] = found["hidden_states"].half()
    save_file(found, states / "hs_13.safetensors")
    return {1: "missing", 4: "truncated", 7: "stale", 11: "stale", 13: "mismatched"}


def test_a_check_by_headers_finds_every_damaged_file_and_repair_makes_just_those(
    run: Callable[..., Manifest], verifier: Verifier, tmp_path: Path
) -> None:
    whole = run()
    folder = tmp_path / "corpus"
    kept = (folder / "manifest.json").read_bytes()
    assert check_corpus(folder) == (whole, [])
    expected = damage(folder)
    (folder / "hidden_states" / "hs_24.safetensors").write_bytes(b"of a larger corpus")
    _, findings = check_corpus(folder)
    assert {f.row: f.kind for f in findings if f.row is not None} == expected
    assert [f.name for f in findings if f.row is None] == ["hidden_states/hs_24.safetensors"]
    untouched = folder / "hidden_states" / "hs_9.safetensors"
    before = untouched.stat().st_mtime_ns
    done = repair_corpus(folder, verifier, findings, progress=silent)
    assert (done.num_files, done.is_same, done.digest) == (5, True, whole.digest)
    assert untouched.stat().st_mtime_ns == before
    assert check_corpus(folder, deep=True) == (whole, [])
    assert (folder / "manifest.json").read_bytes() == kept


def test_a_folder_among_the_states_is_not_deleted(
    run: Callable[..., Manifest], verifier: Verifier, tmp_path: Path
) -> None:
    run()
    states = tmp_path / "corpus" / "hidden_states"
    (states / "notes").mkdir()
    (states / "notes" / "precious").write_text("x")
    (states / "hs_2.safetensors").unlink()
    _, findings = check_corpus(tmp_path / "corpus")
    with pytest.raises(ConfigError, match="notes: expected files alone, found a folder"):
        repair_corpus(tmp_path / "corpus", verifier, findings, progress=silent)
    assert (states / "notes" / "precious").read_text() == "x"


def test_a_flipped_bit_is_found_deep_and_mended(
    run: Callable[..., Manifest], verifier: Verifier, tmp_path: Path
) -> None:
    whole = run()
    path = tmp_path / "corpus" / "hidden_states" / "hs_5.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-300] ^= 1
    path.write_bytes(raw)
    assert check_corpus(tmp_path / "corpus")[1] == []
    _, findings = check_corpus(tmp_path / "corpus", deep=True)
    assert [(f.row, f.kind) for f in findings] == [(5, "changed")]
    assert repair_corpus(tmp_path / "corpus", verifier, findings, progress=silent).is_same
    assert check_corpus(tmp_path / "corpus", deep=True) == (whole, [])


def test_rows_that_were_changed_cannot_be_repaired_from_states(
    run: Callable[..., Manifest], verifier: Verifier, tmp_path: Path
) -> None:
    run()
    (tmp_path / "corpus" / "tokens" / "token_freq.pt").write_bytes(b"")
    _, findings = check_corpus(tmp_path / "corpus")
    assert [(f.name, f.kind) for f in findings] == [("tokens/token_freq.pt", "changed")]
    with pytest.raises(ConfigError, match=r"token_freq\.pt is changed"):
        repair_corpus(tmp_path / "corpus", verifier, findings, progress=silent)


def test_states_in_fp8_are_read_by_the_trainer_and_by_replays(
    run: Callable[..., Manifest], tmp_path: Path
) -> None:
    full, small = run("full"), run("small", config=ExtractConfig(dtype="fp8", batch_tokens=64))
    assert small.files.num_bytes < full.files.num_bytes / 2
    assert check_corpus(tmp_path / "small")[1] == []
    exact, rounded = (
        read_rows(Corpus.load(tmp_path / name))[3].load_states() for name in ("full", "small")
    )
    assert rounded.dtype == torch.float32
    difference = (rounded - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert 0 < difference.max() < 0.05
    corpus = Corpus.load(tmp_path / "small")
    transfer = FP8Transfer(corpus.hidden_states_dir, torch.float32)
    sample = transfer.get_cached(3)
    assert sample is not None
    assert torch.equal(sample["hidden_states"], rounded)


def test_an_online_corpus_stores_the_rows_that_trainings_validate_on(
    run: Callable[..., Manifest], verifier: Verifier, tmp_path: Path
) -> None:
    whole = run("whole")
    made = run("online", config=ExtractConfig(batch_tokens=64, is_online=True, val_ratio=0.2))
    corpus = Corpus.load(tmp_path / "online")
    assert (corpus.first_row, corpus.num_rows, corpus.is_online) == (19, 24, True)
    names = {path.name for path in corpus.hidden_states_dir.iterdir()}
    assert names == {f"hs_{row}.safetensors" for row in range(19, 24)}
    assert made.counts == whole.counts
    exact = read_rows(Corpus.load(tmp_path / "whole"), 19)
    for row, other in zip(read_rows(corpus, 19), exact, strict=True):
        torch.testing.assert_close(row.load_states(), other.load_states(), rtol=1e-4, atol=1e-4)
    (corpus.hidden_states_dir / "hs_20.safetensors").unlink()
    _, findings = check_corpus(tmp_path / "online")
    assert [(f.row, f.kind) for f in findings] == [(20, "missing")]
    assert repair_corpus(tmp_path / "online", verifier, findings, progress=silent).is_same
    assert check_corpus(tmp_path / "online", deep=True) == (made, [])


def test_changed_rows_are_refused(run: Callable[..., Manifest], tokens_dir: Path) -> None:
    (tokens_dir / "token_freq.pt").write_bytes(b"")
    with pytest.raises(CheckError, match=r"prepare: .*token_freq\.pt was changed"):
        run()


def test_layers_that_the_verifier_lacks_are_refused(run: Callable[..., Manifest]) -> None:
    with pytest.raises(ConfigError, match="increasing layers from 0 to 7"):
        run(config=ExtractConfig(aux_layer_ids=(2, 8)))
    with pytest.raises(ConfigError, match="increasing layers"):
        run(config=ExtractConfig(aux_layer_ids=(5, 2)))


def test_states_can_be_stored_in_half_the_bytes(
    run: Callable[..., Manifest], tmp_path: Path
) -> None:
    full, half = run("full"), run("half", config=ExtractConfig(dtype="bfloat16"))
    states = load_file(tmp_path / "half" / "hidden_states" / "hs_0.safetensors")["hidden_states"]
    assert states.dtype == torch.bfloat16
    assert half.files.num_bytes < full.files.num_bytes


def test_a_verifier_that_overflows_is_refused(
    conversations_dir: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny_model_dir.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.3.mlp.down_proj.weight"][0, 0] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    verifier = Verifier.load(str(broken), load_settings())
    manifest = Manifest.model_validate_json((conversations_dir / "manifest.json").read_bytes())
    plan = Plan(stage="regenerate", inputs={"verifier": verifier_digest(verifier)}, config={})
    finish_stage(conversations_dir, plan, manifest.counts, manifest.files, manifest.origins)
    prepare(conversations_dir, verifier, tmp_path / "t", PrepareConfig(), progress=silent)
    with pytest.raises(VerifierError, match="NaN or infinity at layer 4"):
        extract(tmp_path / "t", verifier, tmp_path / "c", BATCHES, progress=silent)


CHILD = """
import sys, time
from pathlib import Path
from harness.corpus.extraction import extract
from harness.corpus.extractplan import ExtractConfig
from harness.drafter.verifier import Verifier
from harness.settings import load_settings
tokens, verifier, out = sys.argv[1:]
extract(Path(tokens), Verifier.load(verifier, load_settings()), Path(out),
        ExtractConfig(batch_tokens=64), progress=lambda *a: time.sleep(0.05))
"""


@pytest.mark.parametrize("num_files", [1, 9])
def test_killed_at_any_point_it_goes_on_to_equal_bytes(
    run: Callable[..., Manifest],
    tokens_dir: Path,
    verifier: Verifier,
    tmp_path: Path,
    num_files: int,
) -> None:
    states_dir = tmp_path / "corpus" / "hidden_states"
    arguments = [str(tokens_dir), str(verifier.path), str(tmp_path / "corpus")]
    with subprocess.Popen([sys.executable, "-c", CHILD, *arguments]) as child:
        deadline = time.monotonic() + 60
        while len(list(states_dir.glob("hs_*"))) < num_files:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(child.pid, signal.SIGKILL)
    assert not (tmp_path / "corpus" / "manifest.json").exists()
    assert run() == run("undisturbed")
    assert len(list(states_dir.iterdir())) == 24
