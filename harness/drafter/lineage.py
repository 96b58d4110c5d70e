"""The chain from a drafter back to its root, followed through provenance records.

Knows no store: it is given a function that reads a run's record, so it works on any.
"""

from collections.abc import Callable
from typing import NamedTuple

from pydantic import ValidationError

from harness.config.load import Frozen
from harness.drafter.provenance import Provenance
from harness.errors import CheckError

SCHEMA_VERSION = 1
_SHORT = 12
_INDENT = "   "


class RunRecord(NamedTuple):
    """What a store knows of a training run."""

    name: str
    provenance: str | None
    """Text of its `provenance.json`."""


class Generation(Frozen):
    """One drafter of the chain. Everything is None that its record does not say."""

    reference: str
    digest: str | None
    run_id: str | None
    run_name: str | None
    provenance: Provenance | None

    @property
    def is_from_scratch(self) -> bool:
        """Whether the chain is known to start here."""
        return self.provenance is not None and self.provenance.parent is None


class Lineage(Frozen):
    """The drafter first, its root last."""

    schema_version: int = SCHEMA_VERSION
    generations: tuple[Generation, ...]
    is_complete: bool
    """Whether the last generation was trained from scratch, rather than unknown before that."""


def trace_lineage(
    reference: str,
    digest: str | None,
    run_id: str | None,
    read_run: Callable[[str], RunRecord | None],
) -> Lineage:
    """Follows parents until one was trained from scratch or nothing is known of it.

    Args:
        reference: What the user called the drafter.
        digest: Its root digest.
        run_id: The run that trained it; None ends the chain at once.
        read_run: Reads a run; None where the store has no such run.

    Raises:
        CheckError: A record cannot be read, or the chain comes back to a run it has been to.
    """
    generations: list[Generation] = []
    seen: set[str] = set()
    while True:
        if run_id in seen:
            raise CheckError(
                f"expected a chain that ends, found run {run_id} twice in the lineage of "
                f"{generations[0].reference}",
                "a provenance record was edited; compare the runs in the UI",
            )
        record = read_run(run_id) if run_id else None
        provenance = _parse(run_id, record)
        generations.append(
            Generation(
                reference=reference, digest=digest, run_id=run_id,
                run_name=record.name if record else None, provenance=provenance,
            )
        )  # fmt: skip
        if provenance is None or provenance.parent is None:
            break
        if run_id:
            seen.add(run_id)
        parent = provenance.parent
        reference, digest, run_id = parent.reference, parent.root_digest, parent.run_id
    return Lineage(generations=tuple(generations), is_complete=generations[-1].is_from_scratch)


def render_tree(lineage: Lineage) -> str:
    """The chain as indented lines, the drafter at the top and its root at the bottom."""
    lines: list[str] = []
    for depth, generation in enumerate(lineage.generations):
        indent = _INDENT * (depth - 1) + "└─ finetuned from " if depth else ""
        lines.append(indent + _title(generation))
        margin = _INDENT * depth + ("│  " if depth + 1 < len(lineage.generations) else _INDENT)
        lines += [margin + fact for fact in _facts(generation)]
    return "\n".join(lines)


def render_mermaid(lineage: Lineage) -> str:
    """The chain as a Mermaid flowchart, root first."""
    lines = ["flowchart TD"]
    count = len(lineage.generations)
    for index, generation in enumerate(reversed(lineage.generations)):
        label = "<br/>".join([_title(generation), *_facts(generation)])
        lines.append(f'  d{index}["{_escape(label)}"]')
    for index in range(1, count):
        child = lineage.generations[count - 1 - index]
        policy = child.provenance.d2t_policy if child.provenance else "unknown"
        lines.append(f"  d{index - 1} -->|finetune, vocabulary: {policy}| d{index}")
    return "\n".join(lines)


def _parse(run_id: str | None, record: RunRecord | None) -> Provenance | None:
    if record is None or record.provenance is None:
        return None
    try:
        return Provenance.model_validate_json(record.provenance)
    except ValidationError as error:
        raise CheckError(
            f"run {run_id}: expected a provenance record, found {error.error_count()} problem(s): "
            f"{error.errors()[0]['msg']}",
            "the record is of another version of this program, or was edited",
        ) from error


def _title(generation: Generation) -> str:
    parts = [generation.run_name, generation.reference]
    if generation.digest:
        parts.append(f"sha256 {generation.digest[:_SHORT]}")
    return "  ".join(part for part in parts if part)


def _facts(generation: Generation) -> list[str]:
    provenance = generation.provenance
    if provenance is None:
        return ["nothing recorded before this"]
    commit = (provenance.code.commit or "unknown")[:_SHORT]
    facts = [
        f"verifier {provenance.verifier_reference}  sha256 {provenance.verifier_digest[:_SHORT]}",
        f"corpus {(provenance.corpus_digest or 'unknown')[:_SHORT]}  "
        f"head_dim {provenance.head_dim} ({provenance.head_dim_source})",
        f"code {commit}{' with changes' if provenance.code.is_dirty else ''}",
    ]
    if provenance.parent is None:
        return ["from scratch", *facts]
    actions = [tensor.action for tensor in provenance.tensors]
    counts = ", ".join(f"{actions.count(a)} {a}" for a in dict.fromkeys(actions))
    return [*facts, f"tensors: {counts}; vocabulary: {provenance.d2t_policy}"]


def _escape(text: str) -> str:
    """Mermaid's own spelling of what would end a label; the line break stays."""
    kept = text.replace("<br/>", "\n")
    for char, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        kept = kept.replace(char, code)
    return kept.replace("\n", "<br/>")
