"""`harness replay` over a real corpus and a real checkpoint: the figures, the faults, the kill."""

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.command_line import run_harness, start_python
from fakes.drafters import edit_config
from fakes.tiny_corpus import (
    ANSWER_TOKENS,
    NUM_ROWS,
    prompt_words,
    write_running_verifier,
    write_tiny_corpus,
    write_words,
)
from safetensors.torch import load_file, save_file

from eval.replayresult import ReplayResult
from harness.config.train import TrainConfig
from harness.digests import sha256_file
from harness.settings import Settings, load_settings
from harness.tracking import names
from harness.tracking.store import Store, open_store
from harness.training.run import run_training

pytestmark = pytest.mark.timeout(400)

MANY = 600
"""Prompts: some seconds of answers, to be killed in."""


class Project(NamedTuple):
    """A store with one trained drafter, its verifier and corpus."""

    root: Path
    settings: Settings
    verifier: Path
    corpus: Path
    run_id: str

    def replay(self, *arguments: str, root: Path | None = None) -> "tuple[int, str, str]":
        """The command in a process of its own: exit code, stdout, stderr."""
        done = run_harness(
            root or self.root, "replay", *arguments, "--set", "num_resamples=100", timeout_s=200
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    uri = f"sqlite:///{root / 'mlruns' / 'mlflow.db'}"
    settings = load_settings(root).model_copy(
        update={"tracking_uri": uri, "cache_dir": root / "cache"}
    )
    verifier = write_running_verifier(root / "verifier")
    write_words(verifier)
    corpus = write_tiny_corpus(root / "corpus", verifier)
    config = TrainConfig(
        verifier=str(verifier),
        corpus=str(corpus),
        head_dim=16,
        draft_vocab_size=48,
        total_seq_len=128,
        epochs=4,
        lr=3e-3,
        device="cpu",
        smoke="never",
    )
    trained = run_training(config, settings, open_store(settings), lambda *_: None)
    return Project(root, settings, verifier, corpus, trained.run_id)


@pytest.fixture(scope="module")
def store(project: Project) -> Store:
    return open_store(project.settings)


@pytest.fixture(scope="module")
def replayed(project: Project) -> tuple[ReplayResult, str]:
    """Two epochs replayed over the corpus, and stderr."""
    code, out, err = project.replay(
        "--drafter", f"run:{project.run_id}@0", "--drafter", f"run:{project.run_id}@3",
        "--corpus", str(project.corpus), "--k", "4", "--json",
    )  # fmt: skip
    assert code == 0, err
    return ReplayResult.model_validate_json(out), err


def write_prompts(path: Path, numbers: Sequence[int]) -> Path:
    lines = [
        json.dumps({"id": f"row {n}", "category": "ab"[n % 2], "prompt": prompt_words(n)})
        for n in numbers
    ]
    path.write_text("\n".join(lines))
    return path


def test_every_answer_of_the_corpus_is_greedy_and_every_token_is_counted(
    replayed: tuple[ReplayResult, str],
) -> None:
    result, err = replayed
    assert "checking extract" in err
    assert result.greedy.num_equal == result.greedy.num_checked == NUM_ROWS * ANSWER_TOKENS
    assert result.num_answer_tokens == NUM_ROWS * ANSWER_TOKENS
    for drafter in result.drafters:
        assert [row.k for row in drafter.rows] == [1, 2, 3, 4]
        for row in drafter.rows:
            row.acceptance.require_consistent()
            emitted = row.acceptance_length_emitted.value * row.acceptance.num_drafts
            assert round(emitted) == NUM_ROWS * (ANSWER_TOKENS - 1)
            assert row.acceptance_length.value >= row.acceptance_length_emitted.value
    before, after = (drafter.pooled().everywhere_length.value for drafter in result.drafters)
    assert after > before > 1


def test_the_figures_are_on_the_run_and_on_each_checkpoint(
    project: Project, store: Store, replayed: tuple[ReplayResult, str]
) -> None:
    result, _ = replayed
    runs = store.find_runs(kind=names.KIND_REPLAY, status="FINISHED")
    run = runs[-1]
    assert (
        ReplayResult.model_validate_json(store.read_text(run.run_id, names.ARTIFACT_REPLAY_RESULT))
        == result
    )
    assert "<svg" in store.read_text(run.run_id, "replay/replay.html")
    lengths = {d.drafter: d.pooled().acceptance_length.value for d in result.drafters}
    assert run.metrics[names.METRIC_REPLAY_LENGTH] == pytest.approx(max(lengths.values()))
    for checkpoint in store.checkpoints(project.run_id):
        reference = f"run:{project.run_id}@{checkpoint.epoch}"
        if reference in lengths:
            found = checkpoint.metrics[names.METRIC_REPLAY_LENGTH]
            assert found == pytest.approx(lengths[reference])


def test_prompts_are_answered_once_and_their_answers_are_those_of_the_corpus(
    project: Project, tmp_path: Path
) -> None:
    numbers = range(8)
    prompts = write_prompts(tmp_path / "prompts.jsonl", numbers)
    arguments = (
        "--drafter", f"run:{project.run_id}@3", "--prompts", str(prompts), "--json",
        "--set", f"max_tokens={ANSWER_TOKENS}",
    )  # fmt: skip
    code, out, err = project.replay(*arguments)
    assert code == 0, err
    first = ReplayResult.model_validate_json(out)
    assert first.states_s is not None
    assert first.is_past_end_known
    code, out, err = project.replay(*arguments)
    again = ReplayResult.model_validate_json(out)
    assert again.states_s is None
    assert "recording" not in err
    assert strip(again) == strip(first)
    assert {row.category for row in first.drafters[0].rows} == {"all", "a", "b"}
    examples = first.drafters[0].examples
    texts = {e.prompt_id: "".join(p.text for p in e.pieces).split() for e in examples}
    rows = [load_file(project.corpus / "hidden_states" / f"hs_{n}.safetensors") for n in numbers]
    for number, row in zip(numbers, rows, strict=True):
        said = [f"t{token}" for token in row["token_ids"].tolist()[-ANSWER_TOKENS:]]
        if f"row {number}" in texts:
            shown = texts[f"row {number}"]
            assert shown == said[: len(shown)]


def test_drafters_of_other_layers_get_hidden_states_of_their_own(
    project: Project, store: Store, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(drafter_path(project, store), other)
    edit_config(other, lambda c: c.update(eagle_aux_hidden_state_layer_ids=[0, 2, 4]))
    prompts = write_prompts(tmp_path / "prompts.jsonl", range(20, 24))
    asked = ("--prompts", str(prompts), "--set", "max_tokens=12", "--json")
    first = f"run:{project.run_id}@3"
    code, out, err = project.replay("--drafter", first, "--drafter", str(other), *asked)
    assert code == 0, err
    together = ReplayResult.model_validate_json(out)
    for index, reference in enumerate((first, str(other))):
        code, out, err = project.replay(
            "--drafter", reference, "--verifier", str(project.verifier), *asked
        )
        assert code == 0, err
        alone = ReplayResult.model_validate_json(out)
        assert alone.states_s is None
        assert alone.drafters[0].prompts == together.drafters[index].prompts
    code, _, err = project.replay(
        "--drafter", first, "--drafter", str(other), "--corpus", str(project.corpus)
    )
    assert code == 4
    assert "1, 3, 5" in err
    assert "0, 2, 4" in err


def test_hidden_states_of_another_verifier_are_refused(project: Project) -> None:
    other = write_running_verifier(project.root / "other", seed=1)
    code, out, err = project.replay(
        "--drafter", f"run:{project.run_id}", "--verifier", str(other),
        "--corpus", str(project.corpus),
    )  # fmt: skip
    assert (code, out) == (4, "")
    assert str(other) in err
    assert str(project.verifier) in err


def test_a_cut_file_of_a_corpus_is_named_before_a_run_is_opened(
    project: Project, store: Store, tmp_path: Path
) -> None:
    corpus = write_tiny_corpus(tmp_path / "corpus", project.verifier)
    path = corpus / "hidden_states" / "hs_5.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    count = len(store.find_runs(kind=names.KIND_REPLAY))
    code, out, err = project.replay("--drafter", f"run:{project.run_id}", "--corpus", str(corpus))
    assert (code, out) == (4, "")
    assert "hs_5.safetensors" in err
    assert len(store.find_runs(kind=names.KIND_REPLAY)) == count


def test_answers_of_a_warmer_verifier_are_refused_with_their_share(
    project: Project, store: Store, tmp_path: Path
) -> None:
    """The corpus as it would be had every fourth token been drawn and not the greatest taken."""
    corpus = write_tiny_corpus(tmp_path / "corpus", project.verifier)
    swap_tokens(corpus)
    code, _, err = project.replay("--drafter", f"run:{project.run_id}", "--corpus", str(corpus))
    assert code == 4, err
    assert "expected greedy answers" in err
    run = store.find_runs(kind=names.KIND_REPLAY)[0]
    assert run.status == "FAILED"
    assert "expected greedy answers" in run.tags[names.TAG_FAILURE]


def test_after_a_kill_the_next_replay_goes_on_and_finds_the_same(
    project: Project, store: Store, tmp_path: Path
) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", range(MANY))
    arguments = (
        "--drafter", f"run:{project.run_id}@3", "--prompts", str(prompts), "--set", "max_tokens=40",
        "--set", "num_resamples=100",
    )  # fmt: skip
    process = start_python(project.root, "-m", "harness", "replay", *arguments)
    states = project.settings.replay_dir / "states"
    try:
        made = wait_for_rows(states, before={path.name for path in states.glob("*")})
    finally:
        process.kill()
        process.communicate()
    assert not list(made.glob("transcripts.json"))
    kept = {path: sha256_file(path) for path in made.glob("row_*.safetensors")}
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert 0 < len(kept) < MANY
    assert store.find_runs(kind=names.KIND_REPLAY)[0].status == "RUNNING"
    code, out, err = project.replay(*arguments[:-2], "--json")
    assert code == 0, err
    assert {path: path.stat().st_mtime_ns for path in kept} == times
    afresh = run_harness(tmp_path, "replay", "--drafter", str(drafter_path(project, store)),
                         "--verifier", str(project.verifier), *arguments[2:], "--json",
                         timeout_s=300)  # fmt: skip
    assert afresh.returncode == 0, afresh.stderr
    one, other = (ReplayResult.model_validate_json(text) for text in (out, afresh.stdout))
    assert one.drafters[0].prompts == other.drafters[0].prompts
    assert run_harness(project.root, "doctor", "--reap").returncode in {0, 4}
    assert not store.find_runs(kind=names.KIND_REPLAY, status="RUNNING")


def strip(result: ReplayResult) -> ReplayResult:
    """Without the times."""
    drafters = tuple(d.model_copy(update={"replay_s": 0.0}) for d in result.drafters)
    return result.model_copy(update={"drafters": drafters, "states_s": None, "load_s": 0.0})


def drafter_path(project: Project, store: Store) -> Path:
    return next(c.path for c in store.checkpoints(project.run_id) if c.epoch == 3)


def wait_for_rows(states: Path, before: set[str]) -> Path:
    """The new folder of states, as soon as rows are in it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for folder in states.glob("*"):
            if folder.name not in before and any(folder.glob("row_*.safetensors")):
                return folder
        time.sleep(0.01)
    pytest.fail("no rows were written")


def swap_tokens(corpus: Path) -> None:
    """Other tokens in every fourth place of each answer, the hidden states left as they are."""
    from datasets import Dataset, load_from_disk

    from harness.corpus.manifest import MANIFEST_NAME, Manifest, Plan, finish_stage
    from harness.digests import digest_files

    rows = [list(row) for row in load_from_disk(corpus / "tokens")["input_ids"]]
    columns = load_from_disk(corpus / "tokens").to_dict()
    for number, row in enumerate(rows):
        changed = [int(t) for t in row]
        for place in range(len(changed) - 1, len(changed) - ANSWER_TOKENS, -4):
            changed[place] = (changed[place] + 1) % 90 + 3
        path = corpus / "hidden_states" / f"hs_{number}.safetensors"
        tensors = load_file(path)
        tensors["token_ids"][:] = tensors["token_ids"].new_tensor(changed)
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
        columns["input_ids"][number] = changed
    Dataset.from_dict(columns).save_to_disk(corpus / "changed")
    for path in (corpus / "tokens").glob("*.arrow"):
        path.unlink()
    for path in (corpus / "changed").glob("*.arrow"):
        path.rename(corpus / "tokens" / path.name)
    manifest = Manifest.model_validate_json((corpus / MANIFEST_NAME).read_bytes())
    listed = [file.name for file in manifest.files.files]
    plan = Plan.model_validate(manifest.model_dump(include=set(Plan.model_fields)))
    files = digest_files(corpus, [name for name in listed if (corpus / name).exists()])
    finish_stage(corpus, plan, manifest.counts, files, manifest.origins)
