"""verify --replay of a checkpoint of ours: its file against what its run measured."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eval.facts import VerifierFacts
from eval.scoring import Subject
from eval.verifier import VerifierParts
from harness.commands.verifytrained import check_against_training
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.check_replay import load_subject
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.settings import Settings
from harness.tracking.store import Store
from harness.training.run import TrainRun

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def facts(settings: Settings, verifier_path: Path) -> VerifierFacts:
    return verifier_facts(Verifier.load(str(verifier_path), settings), "ab" * 32)


@pytest.fixture(scope="module")
def subject(
    trained: TrainRun, store: Store, settings: Settings, verifier_path: Path, facts: VerifierFacts
) -> Subject:
    verifier = Verifier.load(str(verifier_path), settings)
    parts = VerifierParts.load(facts, torch.float32)
    drafter = Drafter.load(store.checkpoints(trained.run_id)[-1].path)
    return load_subject(drafter, draft_facts(drafter, verifier), parts)


def test_the_file_as_it_was_saved_agrees(
    subject: Subject, trained: TrainRun, store: Store, facts: VerifierFacts
) -> None:
    checkpoint, run = store.checkpoints(trained.run_id)[-1], store.get_run(trained.run_id)
    (finding,) = check_against_training(subject, checkpoint, run, facts)
    assert (finding.rule, finding.severity) == ("trained", "info")
    assert "they agree; worst step" in finding.found


def test_a_file_that_computes_something_else_is_an_error(
    subject: Subject, trained: TrainRun, store: Store, facts: VerifierFacts
) -> None:
    checkpoint, run = store.checkpoints(trained.run_id)[-1], store.get_run(trained.run_id)
    # The small drafter is right at 3 of 60 positions: too few to fall beyond the tolerance.
    better = checkpoint.model_copy(
        update={"metrics": {**checkpoint.metrics, "val/full_acc_0": 0.5}}
    )
    (finding,) = check_against_training(subject, better, run, facts)
    assert (finding.rule, finding.severity) == ("trained", "error")
    layers = subject.facts.model_copy(update={"aux_layer_ids": (0, 2, 4)})
    (finding,) = check_against_training(subject._replace(facts=layers), checkpoint, run, facts)
    assert (finding.rule, finding.severity) == ("S14", "error")


def test_a_corpus_that_changed_is_not_compared_with(
    subject: Subject, trained: TrainRun, store: Store, facts: VerifierFacts
) -> None:
    checkpoint, run = store.checkpoints(trained.run_id)[-1], store.get_run(trained.run_id)
    other = run.model_copy(update={"tags": {**run.tags, "corpus.digest": "0" * 64}})
    (finding,) = check_against_training(subject, checkpoint, other, facts)
    assert finding.severity == "info"
    assert "was not checked" in finding.consequence


def test_another_revision_of_the_verifier_is_an_error(
    subject: Subject, trained: TrainRun, store: Store, facts: VerifierFacts, tmp_path: Path
) -> None:
    checkpoint, run = store.checkpoints(trained.run_id)[-1], store.get_run(trained.run_id)
    folder = tmp_path / "revised"
    shutil.copytree(facts.path, folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    weights[name] = weights[name] * 1.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    revised = facts.model_copy(update={"path": folder})
    agrees, differs = check_against_training(subject, checkpoint, run, revised)
    assert agrees.severity == "info"
    assert (differs.rule, differs.severity) == ("S21", "error")
