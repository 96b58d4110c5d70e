"""`harness replay` as a user types it: what it refuses, with which code, and what it leaves."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.drafters import AUX, build_drafter, build_verifier, decoder, edit_config, edit_tensors
from fakes.memory_store import MemoryStore
from fakes.replay_corpus import write_replay_corpus

from eval.replayresult import ReplayResult
from harness import cli
from harness.commands import replay as command
from harness.corpus.manifest import MANIFEST_NAME, PLAN_NAME
from harness.digests import FolderDigest
from harness.drafter.drafter import drafter_digest
from harness.drafter.verifier import Verifier
from harness.tracking import names


class Bench(NamedTuple):
    """A project with a verifier, a drafter, a corpus and a store in memory."""

    root: Path
    verifier: Verifier
    drafter: Path
    corpus: Path
    store: MemoryStore

    def replay(self, *arguments: str, drafter: Path | None = None) -> int:
        """Runs the command over the corpus; its exit code."""
        given = ["--verifier", str(self.verifier.path), "--set", "num_resamples=100", *arguments]
        if "--corpus" not in arguments and "--prompts" not in arguments:
            given += ["--corpus", str(self.corpus)]
        return cli.run(["replay", "--drafter", str(drafter or self.drafter), *given])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    store = MemoryStore(tmp_path)
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "open_store", lambda _: store)
    verifier = build_verifier(tmp_path / "verifier")
    drafter = build_drafter(tmp_path / "drafter", verifier)
    corpus = write_replay_corpus(tmp_path / "corpus", verifier, AUX)
    return Bench(tmp_path, verifier, drafter, corpus, store)


def test_a_replay_is_one_run_with_figures_and_documents(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.replay("--json", "--k", "2") == 0
    result = ReplayResult.model_validate_json(capsys.readouterr().out)
    (run,) = bench.store.find_runs(kind=names.KIND_REPLAY)
    row = result.drafters[0].pooled()
    assert run.status == "FINISHED"
    assert run.experiment == names.EXPERIMENT_REPLAY
    assert run.metrics[names.METRIC_REPLAY_LENGTH] == row.acceptance_length.value
    assert run.metrics[names.METRIC_REPLAY_EVERYWHERE] == row.everywhere_length.value
    assert run.metrics[names.METRIC_REPLAY_CEILING] == row.ceiling
    assert run.tags[names.TAG_VERIFIER_DIGEST] == result.verifier_digest
    assert run.tags[names.TAG_CORPUS_DIGEST] == result.source_digest
    assert run.params["k"] == "2"
    assert [r.k for r in result.drafters[0].rows if r.category == "all"] == [1, 2]
    assert {r.category for r in result.drafters[0].rows} == {"all", "chat", "code"}
    assert (result.greedy.num_checked, result.greedy.num_equal) == (48, 48)
    stored = bench.store.read_text(run.run_id, names.ARTIFACT_REPLAY_RESULT)
    assert ReplayResult.model_validate_json(stored) == result
    (folder,) = (bench.root / "mlruns" / "replay").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "result.json", "replay.html", "samples.parquet", "run_id.txt",
    }  # fmt: skip
    assert ReplayResult.load(folder / "result.json") == result


def test_the_screen_fits_80_columns_and_explains_itself(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert bench.replay() == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "48 of 48" in shown.replace("\n", " ")
    assert "not known, not counted" in shown
    for word in ("the walk", "all positions", "ceiling", "by category", "by place"):
        assert word in shown


def test_figures_are_linked_to_the_checkpoint_that_was_replayed(bench: Bench) -> None:
    run_id, model_id = record(bench)
    assert cli.run(
        ["replay", "--drafter", f"run:{run_id}", "--corpus", str(bench.corpus),
         "--set", "num_resamples=100"]
    ) == 0  # fmt: skip
    (run,) = bench.store.find_runs(kind=names.KIND_REPLAY)
    checkpoint = bench.store.get_checkpoint(model_id)
    assert names.METRIC_REPLAY_LENGTH in checkpoint.metrics
    assert run.model_inputs == (model_id,)
    assert run.tags[names.TAG_VERIFIER] == str(bench.verifier.path)


def test_a_checkpoint_that_was_changed_is_refused_by_the_file(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id, _ = record(bench)
    edit_tensors(bench.drafter, lambda t: t["fc.weight"].__imul__(1.5))
    assert cli.run(["replay", "--drafter", f"run:{run_id}", "--corpus", str(bench.corpus)]) == 4
    assert "model.safetensors" in capsys.readouterr().err
    assert bench.store.find_runs(kind=names.KIND_REPLAY) == ()


def test_several_drafters_share_the_answers_and_the_best_one_stands_for_the_run(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    other = build_drafter(bench.root / "other", bench.verifier, seed="b")
    assert bench.replay("--drafter", str(other), "--json") == 0
    result = ReplayResult.model_validate_json(capsys.readouterr().out)
    assert [one.drafter for one in result.drafters] == [str(bench.drafter), str(other)]
    (run,) = bench.store.find_runs(kind=names.KIND_REPLAY)
    lengths = {one.drafter: one.pooled().acceptance_length.value for one in result.drafters}
    assert run.metrics[names.METRIC_REPLAY_LENGTH] == max(lengths.values())
    assert lengths[run.tags[names.TAG_BEST_DRAFTER]] == max(lengths.values())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--k", "0"], 2, ["k", "0"]),
        (["--k", "17"], 2, ["k", "17"]),
        (["--k", "two"], 2, ["--k", "integer"]),
        (["--corpus", "/no/corpus"], 2, ["/no/corpus"]),
        (["--corpus", "x", "--prompts", "y"], 2, ["found both"]),
        (["--prompts", "/no/prompts"], 2, ["/no/prompts"]),
        (["--set", "max_tokns=3"], 2, ["max_tokens"]),
        (["--drafter", "/no/drafter"], 2, ["/no/drafter"]),
        (["--verifier", "/no/verifier"], 2, ["/no/verifier"]),
        (["--set", "max_unequal=0.9"], 2, ["max_unequal"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_code_2_and_no_run(
    bench: Bench,
    arguments: list[str],
    code: int,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.replay(*arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(word in captured.err for word in words)
    assert bench.store.find_runs() == ()


def test_a_gpu_that_is_not_there_is_named_before_a_run_begins(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert bench.replay("--set", "device=cuda") == 3
    assert "expected a GPU for device cuda" in capsys.readouterr().err
    assert bench.store.find_runs() == ()


def test_the_same_drafter_twice_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copied = shutil.copytree(bench.drafter, tmp_path / "copied")
    for again in (str(bench.drafter), f"{bench.drafter}/", str(copied)):
        assert bench.replay("--drafter", again) == 2
        assert "the same files more than once" in capsys.readouterr().err


def test_no_drafter_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", "--corpus", str(bench.corpus)]) == 2
    assert "no drafter" in capsys.readouterr().err


def test_an_unfinished_corpus_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.corpus / MANIFEST_NAME).rename(bench.corpus / PLAN_NAME)
    assert bench.replay() == 2
    assert "found an unfinished one" in capsys.readouterr().err


def test_hidden_states_of_another_verifier_are_refused_with_both_names(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_replay_corpus(bench.root / "c2", bench.verifier, AUX, digest="5" * 64)
    assert bench.replay("--corpus", str(corpus)) == 4
    said = capsys.readouterr().err
    assert str(bench.verifier.path) in said
    assert "another-verifier" in said
    assert "5555" in said
    assert bench.store.find_runs() == ()


def test_other_aux_layers_are_refused_with_both_lists(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_replay_corpus(bench.root / "c2", bench.verifier, (1, 2, 3))
    assert bench.replay("--corpus", str(corpus)) == 4
    said = capsys.readouterr().err
    assert "1, 2, 3" in said
    assert ", ".join(map(str, AUX)) in said


def test_a_corpus_without_answers_is_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_replay_corpus(bench.root / "c2", bench.verifier, AUX, num_answer_tokens=0)
    assert bench.replay("--corpus", str(corpus)) == 4
    assert "expected answers to replay, found none" in capsys.readouterr().err


def test_answers_that_are_not_greedy_fail_the_run_with_their_share(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_replay_corpus(bench.root / "c2", bench.verifier, AUX, num_other=3)
    assert bench.replay("--corpus", str(corpus)) == 4
    said = capsys.readouterr().err
    assert "12 of 48" in said
    assert "25.0%" in said
    (run,) = bench.store.find_runs(kind=names.KIND_REPLAY)
    assert run.status == "FAILED"
    assert "25.0%" in run.tags[names.TAG_FAILURE]
    assert bench.replay("--corpus", str(corpus), "--set", "max_unequal=0.3") == 0


def test_a_file_of_hidden_states_that_was_cut_is_named(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bench.corpus / "hidden_states" / "hs_2.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    assert bench.replay() == 4
    assert "hs_2.safetensors" in capsys.readouterr().err
    assert bench.store.find_runs() == ()


def test_one_changed_byte_of_hidden_states_is_noticed(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bench.corpus / "hidden_states" / "hs_1.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert bench.replay() == 4
    assert "hs_1.safetensors was changed" in capsys.readouterr().err


def test_an_unsound_drafter_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(bench.drafter, lambda c: decoder(c).update(head_dim=8))
    assert bench.replay() == 4
    assert "S1" in capsys.readouterr().err


def test_a_drafter_with_latent_attention_is_refused_by_name(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    mla = build_drafter(bench.root / "mla", bench.verifier, "mla")
    assert bench.replay(drafter=mla) == 4
    assert "MLA" in capsys.readouterr().err


def test_an_interrupted_replay_ends_killed_and_the_next_one_takes_its_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.commands import replaywork

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replaywork, "replay_drafter", interrupt)
        assert bench.replay() == 130
    assert bench.replay() == 0
    assert bench.replay() == 0
    runs = bench.store.find_runs(kind=names.KIND_REPLAY)
    assert [run.status for run in runs] == ["FINISHED", "FINISHED", "KILLED"]
    folders = sorted(path.name for path in (bench.root / "mlruns" / "replay").iterdir())
    assert [name[-2:] for name in folders] == ["-1", "-2"]


def test_a_replay_closes_the_run_of_one_that_was_killed_outright(bench: Bench) -> None:
    killed = bench.store.start_run(
        names.KIND_REPLAY,
        "replay",
        experiment=names.EXPERIMENT_REPLAY,
        tags={names.TAG_PROCESS_START: "1"},
    )
    assert bench.replay() == 0
    assert bench.store.get_run(killed.run_id).status == "KILLED"


def test_json_holds_no_number_that_is_none(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.replay("--json") == 0
    text = capsys.readouterr().out
    assert "NaN" not in text
    assert json.loads(text)["states_s"] is None


def record(bench: Bench) -> tuple[str, str]:
    """The drafter as a checkpoint of a training run."""
    digest: FolderDigest = drafter_digest(bench.drafter)
    with bench.store.start_run(
        names.KIND_TRAIN,
        "train",
        experiment=names.EXPERIMENT_TRAIN,
        tags={names.TAG_VERIFIER: str(bench.verifier.path)},
    ) as run:
        model_id = run.log_checkpoint("a", bench.drafter, step=1, epoch=0, digest=digest)
    return run.run_id, model_id
