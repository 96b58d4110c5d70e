"""What a model version says of itself on its page: where it came from, and why it was promoted."""

from harness.tracking import names
from harness.tracking.decisions import Decision, Gate
from harness.tracking.markdown import page_table, run_link
from harness.tracking.records import Checkpoint, RunSummary

_SHORT, _MINUTE = 12, 16
_ANSWERS = {True: "yes", False: "NO", None: "not asked"}


def describe_version(decision: Decision, checkpoint: Checkpoint, run: RunSummary) -> str:
    """Markdown: who promoted it and when, the lineage, every gate, where the evidence is.

    Args:
        decision: The promotion.
        checkpoint: What was promoted.
        run: The training that made it.
    """
    made_at = decision.made_at[:_MINUTE].replace("T", " ")
    approved = f", approved by {decision.approved_by}" if decision.approved_by else ""
    instead = f" in place of version {decision.from_version}" if decision.from_version else ""
    bench = run_link("bench", decision.bench_run_id) if decision.bench_run_id else "none"
    return (
        f"Promoted {made_at} UTC by {decision.who}{approved}{instead}.\n\n"
        f"**Lineage**\n\n{page_table(('what', 'which', 'SHA-256'), _lineage(checkpoint, run))}\n\n"
        f"**Decision**, line {decision.sequence} of the log\n\n"
        f"{page_table(('gate', 'required', 'found', 'passed'), map(_gate, decision.gates))}\n\n"
        f"Evidence: {bench}. Policy: sha256 `{decision.policy_digest[:_SHORT]}`.\n"
    )


def _lineage(checkpoint: Checkpoint, run: RunSummary) -> list[tuple[object, ...]]:
    """Verifier, parent, corpus, training and weights, in the order in which they came to be."""
    tags = run.tags
    parent = tags.get(names.TAG_FINETUNE_PARENT)
    corpus = next((d.name for d in run.datasets if d.context == "training"), None)
    shown = (
        run_link(names.short_reference(parent), tags.get(names.TAG_FINETUNE_PARENT_RUN))
        if parent
        else "none: from scratch"
    )
    epoch = "" if checkpoint.epoch is None else f"epoch {checkpoint.epoch}, "
    rows = (
        ("verifier", tags.get(names.TAG_VERIFIER), tags.get(names.TAG_VERIFIER_DIGEST)),
        ("parent", shown, tags.get(names.TAG_FINETUNE_PARENT_DIGEST)),
        ("corpus", corpus, tags.get(names.TAG_CORPUS_DIGEST)),
        ("training", run_link(run.name, run.run_id), None),
        ("checkpoint", f"{epoch}step {checkpoint.step}", checkpoint.digest),
    )
    return [(what, which, digest and digest[:_SHORT]) for what, which, digest in rows]


def _gate(gate: Gate) -> tuple[object, ...]:
    return gate.name, gate.required, gate.found, _ANSWERS[gate.is_passed]
