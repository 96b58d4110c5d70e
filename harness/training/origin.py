"""Where the drafter to be trained comes from: its provenance record, and the tags that find it."""

from harness.drafter.provenance import (
    Provenance,
    code_state,
    hardware,
    package_versions,
    redacted_argv,
)
from harness.tracking.store import Store
from harness.training.plan import TrainPlan

_TAG_DEPTH = "finetune.depth"
_TAG_ROOT = "finetune.root"


def build_provenance(plan: TrainPlan) -> Provenance:
    """The record of a training: everything that goes in, by digest, and what it runs on."""
    prepared, parent = plan.prepared, None
    if prepared is not None and plan.parent is not None:
        known = {
            "reference": plan.parent.reference,
            "run_id": plan.parent.run_id,
            "model_id": plan.parent.model_id,
        }
        parent = prepared.parent.model_copy(update=known)
    return Provenance(
        parent=parent,
        key_map=prepared.key_map if prepared else (),
        tensors=prepared.tensors if prepared else (),
        d2t_policy=prepared.d2t_policy if prepared else "fresh",
        d2t_sha256=prepared.d2t_sha256 if prepared else None,
        verifier_reference=plan.verifier.reference,
        verifier_revision=plan.verifier.revision,
        verifier_digest=plan.verifier_digest,
        corpus_digest=plan.corpus.digest,
        head_dim=plan.shape.head_dim,
        head_dim_source=plan.shape.head_dim_source,
        warnings=plan.warnings,
        code=code_state(),
        versions=package_versions(),
        argv=redacted_argv(),
        hardware=hardware(),
    )


def lineage_tags(provenance: Provenance, store: Store) -> dict[str, str]:
    """Searchable tags, with the place in the chain that the parent's own run tells.

    A parent that no run of this store made is a root itself.
    """
    parent = provenance.parent
    if parent is None:
        return provenance.tags(0, "")
    tags = store.get_run(parent.run_id).tags if parent.run_id else {}
    known = tags.get(_TAG_DEPTH, "0")
    depth = (int(known) if known.isdecimal() else 0) + 1
    return provenance.tags(depth, tags.get(_TAG_ROOT, parent.root_digest))
