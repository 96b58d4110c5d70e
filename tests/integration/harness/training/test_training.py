"""Real trainings of a tiny drafter: what the store and the disk hold afterwards."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from fakes.tiny_corpus import (
    AUX_LAYER_IDS,
    HEADS,
    HIDDEN,
    write_nested_verifier,
    write_running_verifier,
    write_tiny_corpus,
)
from safetensors import safe_open
from safetensors.torch import load_file

from harness.corpus.manifest import Plan, finish_stage
from harness.digests import digest_files
from harness.drafter.checks import check_drafter
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier, verifier_digest
from harness.drafter.vocab import build_tables
from harness.errors import CheckError, ConfigError, WorkError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.tracking.resolve import resolve_drafter
from harness.tracking.store import Store
from harness.training.folders import RESUME_NAMES
from harness.training.plan import build_plan
from harness.training.process import WorkerProcess
from harness.training.run import TrainRun, run_smoke, run_training

from .conftest import HEAD_DIM, MakeConfig

pytestmark = pytest.mark.timeout(300)


def quiet(text: str, done: int, total: int) -> None:
    """Progress that no one watches."""


def test_a_training_is_one_finished_run_with_everything_resolved(
    trained: TrainRun, store: Store
) -> None:
    run = store.get_run(trained.run_id)
    assert run.status is RunStatus.FINISHED
    assert run.params["head_dim"] == str(HEAD_DIM)
    assert run.params["head_dim_source"] == "config"
    assert run.params["device"] == "cpu"
    assert run.params["attention"] == "sdpa"
    assert run.params["num_heads"] == str(HEADS)
    assert run.params["checkpoint_dtype"] == "bfloat16"
    assert 0 < float(run.params["draft_vocab_coverage"]) <= 1
    for key in (
        names.METRIC_STEPS_PER_S,
        names.METRIC_TOKENS_PER_S,
        names.METRIC_PEAK_MEMORY_BYTES,
        names.METRIC_WALL_TIME_S,
        names.METRIC_CHECKPOINT_BYTES,
        "train/loss",
        "val/loss",
        "system/rss_bytes",
    ):
        assert run.metrics[key] > 0, key
    assert run.datasets[0].context == "training"
    assert run.tags["finetune.depth"] == "0"


def test_its_inputs_and_its_log_are_artifacts(trained: TrainRun, store: Store) -> None:
    provenance = json.loads(store.read_text(trained.run_id, "provenance.json") or "")
    assert provenance["head_dim"] == HEAD_DIM
    assert provenance["parent"] is None
    assert "head_dim: 16" in (store.read_text(trained.run_id, "config/train.yaml") or "")
    assert store.read_text(trained.run_id, "logs/worker.log")


def test_checkpoints_have_the_given_head_dim_and_serve(
    trained: TrainRun, verifier_path: Path, settings: Settings
) -> None:
    assert [c.epoch for c in trained.checkpoints] == [0, 1]
    drafter = Drafter.load(trained.best.path)
    assert drafter.head_dim_tensors == drafter.head_dim_configured == HEAD_DIM
    assert HEAD_DIM != HIDDEN // HEADS
    assert drafter.aux_layer_ids == AUX_LAYER_IDS
    assert drafter.aux_layer_source == "config"
    assert drafter.dtype == "bfloat16"
    assert drafter.rope_parameters["rope_theta"] == 10000.0
    report = check_drafter(
        trained.best.path, Verifier.load(str(verifier_path), settings), deep=True
    )
    assert report.ok, report.findings
    assert not list(trained.best.path.glob("*.py"))
    assert not any((trained.best.path / name).exists() for name in RESUME_NAMES)


def test_an_equal_training_is_not_done_again_when_asked(
    trained: TrainRun, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    again = run_training(make_config(name="else"), settings, store, quiet, is_reusing=True)
    assert again.run_id == trained.run_id
    assert again.was_reused


def test_a_finetune_starts_from_the_weights_of_its_parent(
    trained: TrainRun, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    config = make_config(
        finetune_from=f"run:{trained.run_id}", head_dim=None, draft_vocab_size=None, lr=1e-4,
        epochs=1, ttt_steps=2,
    )  # fmt: skip
    child = run_training(config, settings, store, quiet)
    run = store.get_run(child.run_id)
    parent_names = _tensor_names(trained.best.path)
    assert run.params["num_parent_tensors"] == str(len(parent_names))
    assert run.params["head_dim_source"] == "parent tensors"
    assert run.params["head_dim"] == str(HEAD_DIM)
    assert run.tags["finetune.parent"] == f"run:{trained.run_id}"
    assert run.tags["finetune.depth"] == "1"
    assert run.tags["finetune.root"] == trained.best.digest
    assert run.tags["finetune.policy.vocab"] == "keep"
    assert child.best.metrics["val/loss"] < 3.0 * trained.best.metrics["val/loss"]
    config_json = json.loads((child.best.path / "config.json").read_text())
    proposal = config_json["speculators_config"]["proposal_methods"][0]
    assert proposal["speculative_tokens"] == 2


def test_a_finetune_without_learning_keeps_the_figures_of_its_parent(
    trained: TrainRun, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    parent = resolve_drafter(f"run:{trained.run_id}", settings, store)
    config = make_config(finetune_from=str(parent.path), head_dim=None, lr=1e-12, epochs=1)
    child = run_training(config, settings, store, quiet)
    expected = trained.best.metrics["val/loss"]
    assert child.best.metrics["val/loss"] == pytest.approx(expected, rel=0.02)


def test_a_head_dim_against_the_parents_tensors_is_refused(
    trained: TrainRun, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    config = make_config(finetune_from=f"run:{trained.run_id}", head_dim=HIDDEN // HEADS)
    with pytest.raises(ConfigError, match="head_dim"):
        build_plan(config, settings, store, quiet)


def test_a_smoke_training_learns_and_reads_its_checkpoint_back(
    make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    plan = build_plan(make_config(), settings, store, quiet)
    run = store.get_run(run_smoke(plan, settings, store, quiet))
    assert run.kind == names.KIND_SMOKE
    assert run.status is RunStatus.FINISHED


def test_a_training_estimated_too_long_is_smoke_tested_first(
    make_config: MakeConfig, settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.training.run.LONGEST_UNTESTED_S", 0.001)
    _listen_late(monkeypatch, settings.checkpoints_dir)
    before = {run.run_id for run in store.find_runs(kind=names.KIND_SMOKE)}
    trained = run_training(make_config(smoke="auto", seed=5), settings, store, quiet)
    tested = [run for run in store.find_runs(kind=names.KIND_SMOKE) if run.run_id not in before]
    assert [run.status for run in tested] == [RunStatus.FINISHED]
    assert store.get_run(trained.run_id).status is RunStatus.FINISHED
    assert [checkpoint.epoch for checkpoint in trained.checkpoints] == [0, 1]


def _listen_late(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The child has saved an epoch before its estimate is read: it is stopped too late."""
    read, known = WorkerProcess.read_lines, set(folder.glob("*/epochs/0"))

    def read_late(worker: WorkerProcess, timeout_s: float) -> list[bytes] | None:
        deadline = time.monotonic() + 120
        while not set(folder.glob("*/epochs/0")) - known and time.monotonic() < deadline:
            time.sleep(0.1)
        return read(worker, timeout_s)

    monkeypatch.setattr(WorkerProcess, "read_lines", read_late)


def test_a_loss_that_is_not_finite_fails_the_run_with_its_reason(
    project: Path, verifier_path: Path, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    broken = write_tiny_corpus(project / "broken", verifier_path, is_broken=True)
    config = make_config(corpus=str(broken))
    with pytest.raises(WorkError, match="diverged"):
        run_training(config, settings, store, quiet)
    run = store.find_runs(kind=names.KIND_TRAIN, status=RunStatus.FAILED)[0]
    assert run.tags[names.TAG_FAILURE].startswith("diverged: the loss is nan")


def test_a_corpus_of_another_verifier_is_refused(
    project: Path, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    other = write_running_verifier(project / "other", seed=1)
    with pytest.raises(CheckError, match="was made with"):
        build_plan(make_config(verifier=str(other)), settings, store, quiet)


def test_a_wrapped_sharded_verifier_of_unknown_type_trains_to_the_same_weights(
    trained: TrainRun,
    *,
    project: Path,
    verifier_path: Path,
    make_config: MakeConfig,
    settings: Settings,
    store: Store,
) -> None:
    nested = write_nested_verifier(project / "nested", verifier_path)
    corpus = write_tiny_corpus(project / "nested-corpus", verifier_path, named=nested)
    config = make_config(verifier=str(nested), corpus=str(corpus))
    child = run_training(config, settings, store, quiet)
    assert child.metrics["val/loss"] == trained.metrics["val/loss"]
    document = json.loads((child.best.path / "config.json").read_text())
    verifier = document["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": str(nested), "architectures": ["TinyOmni"]}


def test_the_vocabulary_can_be_rebuilt_and_the_head_trained(
    trained: TrainRun, make_config: MakeConfig, settings: Settings, store: Store
) -> None:
    config = make_config(
        finetune_from=f"run:{trained.run_id}", head_dim=None, vocab_policy="rebuild",
        draft_vocab_size=40, train_lm_head=True, epochs=1,
    )  # fmt: skip
    child = run_training(config, settings, store, quiet)
    run, parent = store.get_run(child.run_id), store.get_run(trained.run_id)
    assert run.params["draft_vocab_size"] == "40"
    assert run.params["train_lm_head"] == "true"
    assert run.tags["finetune.policy.vocab"] == "rebuild"
    head = 40 * HIDDEN
    assert int(run.params["num_trainable"]) == int(parent.params["num_trainable"]) + head
    provenance = json.loads(store.read_text(child.run_id, "provenance.json") or "")
    actions = {tensor["name"]: tensor["action"] for tensor in provenance["tensors"]}
    assert actions["lm_head.weight"] == "rebuilt"
    assert actions["fc.weight"] == "loaded"


def test_a_vocabulary_that_was_chosen_is_the_one_that_is_trained(
    make_config: MakeConfig, settings: Settings, store: Store, project: Path
) -> None:
    config = make_config()
    verifier = Verifier.load(config.verifier, settings)
    folder, ids = project / "vocab", np.arange(5, 85, 2)
    folder.mkdir()
    tables = build_tables(ids, verifier.vocab_size)
    np.save(folder / "d2t.npy", tables.d2t)
    np.save(folder / "t2d.npy", tables.t2d)
    plan = Plan(stage="vocab", inputs={"verifier": verifier_digest(verifier)}, config={})
    finish_stage(folder, plan, {}, digest_files(folder, ("d2t.npy", "t2d.npy")), {})
    chosen = config.model_copy(
        update={"draft_vocab": str(folder), "draft_vocab_size": None, "epochs": 1}
    )
    run = run_training(chosen, settings, store, quiet)
    saved = load_file(run.best.path / "model.safetensors")
    assert (saved["d2t"].numpy() + np.arange(40)).tolist() == ids.tolist()
    assert store.get_run(run.run_id).params["draft_vocab_size"] == "40"


def _tensor_names(path: Path) -> list[str]:
    with safe_open(path / "model.safetensors", "np") as file:
        return list(file.keys())
