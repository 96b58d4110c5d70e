"""Real finetunes: what a child starts from, what it keeps, and the way back to its root."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from fakes.command_line import run_harness
from fakes.drafters import decoder, edit_config, edit_tensors
from fakes.first_look import validate_first
from fakes.tiny_corpus import write_tiny_corpus
from safetensors.torch import load_file, save_file

from harness.drafter.checks import check_drafter
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.settings import Settings
from harness.tracking.store import Store
from harness.training.plan import build_plan
from harness.training.run import TrainRun, run_training

from .conftest import HEAD_DIM, MakeConfig

pytestmark = pytest.mark.timeout(400)

FULL = "full_acc_0"
"""Fraction of all answer positions at which the first draft token is the verifier's."""


def quiet(text: str, done: int, total: int) -> None:
    """Progress that no one watches."""


@pytest.fixture(scope="module")
def repeated(project: Path, verifier_path: Path) -> str:
    """A corpus whose validation rows are also trained on."""
    return str(write_tiny_corpus(project / "repeated", verifier_path, num_distinct=6))


@pytest.fixture(scope="module")
def learned(repeated: str, make_config: MakeConfig, settings: Settings, store: Store) -> TrainRun:
    """A drafter that is right at most positions, so that a wrong row shows."""
    config = make_config(corpus=repeated, epochs=40, keep_best=1, name="learned", lr=1e-2)
    return run_training(config, settings, store, quiet)


@pytest.fixture(scope="module")
def before(
    learned: TrainRun,
    repeated: str,
    *,
    make_config: MakeConfig,
    settings: Settings,
    store: Store,
    project: Path,
) -> float:
    """The parent's own accuracy at all positions."""
    config = make_config(
        corpus=repeated, finetune_from=f"run:{learned.run_id}", head_dim=None,
        draft_vocab_size=None,
    )  # fmt: skip
    plan = build_plan(config, settings, store, quiet)
    return validate_first(plan, project / "first-keep")[FULL]


@pytest.mark.parametrize("size", [40, 64])
def test_a_rebuilt_vocabulary_accepts_at_all_positions_what_the_parent_did(
    learned: TrainRun,
    before: float,
    size: int,
    *,
    repeated: str,
    make_config: MakeConfig,
    settings: Settings,
    store: Store,
    project: Path,
) -> None:
    config = make_config(
        corpus=repeated, finetune_from=f"run:{learned.run_id}", head_dim=None,
        vocab_policy="rebuild", draft_vocab_size=size,
    )  # fmt: skip
    plan = build_plan(config, settings, store, quiet)
    after = validate_first(plan, project / f"first-{size}")[FULL]
    assert before > 0.5
    assert after == pytest.approx(before, abs=0.05)

    rows = load_file(project / f"first-{size}" / "parent" / "model.safetensors")
    old = load_file(learned.best.path / "model.safetensors")["lm_head.weight"]
    rows["lm_head.weight"][: len(old)] = old[:size]
    broken = project / f"misaligned-{size}.safetensors"
    save_file(rows, broken)
    assert validate_first(plan, project / f"first-broken-{size}", broken)[FULL] < 0.75 * before


def test_a_qwen3_parent_stays_one(
    trained: TrainRun,
    *,
    verifier_path: Path,
    make_config: MakeConfig,
    settings: Settings,
    store: Store,
    project: Path,
) -> None:
    parent = Path(shutil.copytree(trained.best.path, project / "qwen3"))
    norms = {f"layers.0.self_attn.{n}_norm.weight": np.full(HEAD_DIM, 1.25, "f4") for n in "qk"}
    edit_tensors(parent, lambda tensors: tensors.update(norms))
    edit_config(parent, lambda config: decoder(config).update(model_type="qwen3"))
    config = make_config(
        finetune_from=str(parent), head_dim=None, draft_vocab_size=None, epochs=1, lr=1e-3
    )
    child = run_training(config, settings, store, quiet)
    drafter = Drafter.load(child.best.path)
    assert drafter.model_type == "qwen3"
    assert drafter.head_dim_configured == drafter.head_dim_tensors == HEAD_DIM
    tensors = load_file(child.best.path / "model.safetensors")
    for name in norms:
        assert tensors[name].float().mean() == pytest.approx(1.25, abs=0.05)
    assert store.get_run(child.run_id).params["model_type"] == "qwen3"
    verifier = Verifier.load(str(verifier_path), settings)
    assert check_drafter(child.best.path, verifier, parent, deep=True).ok


def test_two_finetunes_lead_back_to_their_root(
    trained: TrainRun, make_config: MakeConfig, settings: Settings, store: Store, project: Path
) -> None:
    reference, runs = f"run:{trained.run_id}", []  # then the path of the child's checkpoint
    for policy, size in (("rebuild", 40), ("keep", None)):
        config = make_config(
            finetune_from=reference, head_dim=None, draft_vocab_size=size, vocab_policy=policy,
            epochs=1,
        )  # fmt: skip
        runs.append(run_training(config, settings, store, quiet))
        reference = str(runs[-1].best.path)
    child, grandchild = runs
    reference = f"run:{grandchild.run_id}"
    tags = store.get_run(grandchild.run_id).tags
    assert tags["finetune.parent"] == str(child.best.path)
    assert tags["finetune.parent_run_id"] == child.run_id
    assert tags["finetune.parent_digest"] == child.best.digest
    assert tags["finetune.root"] == trained.best.digest
    assert tags["finetune.depth"] == "2"
    assert tags["finetune.policy.vocab"] == "keep"
    assert store.get_run(child.run_id).tags["finetune.policy.vocab"] == "rebuild"
    found = store.find_runs(tags={"finetune.root": trained.best.digest, "finetune.depth": "2"})
    assert [run.run_id for run in found] == [grandchild.run_id]

    done = run_harness(project, "lineage", reference, "--json")
    document = json.loads(done.stdout)
    assert document["is_complete"] is True
    found_ids = [generation["run_id"] for generation in document["generations"]]
    assert found_ids == [grandchild.run_id, child.run_id, trained.run_id]
    digests = [generation["digest"] for generation in document["generations"]]
    assert digests == [run.best.digest for run in (grandchild, child, trained)]

    tree = run_harness(project, "lineage", str(grandchild.best.path)).stdout
    assert tree.count("finetuned from") == 2
    assert "vocabulary: rebuild" in tree
    assert "from scratch" in tree
    mermaid = run_harness(project, "lineage", reference, "--mermaid").stdout
    assert "d0 -->|finetune, vocabulary: rebuild| d1" in mermaid
    assert "d1 -->|finetune, vocabulary: keep| d2" in mermaid
