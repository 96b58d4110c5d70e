"""`harness verify --replay`: the answers recorded, other readings of the config tried."""

from pathlib import Path
from typing import NamedTuple

import torch

from eval.capture import default_device
from eval.counterfactual import run_counterfactuals
from eval.facts import VerifierFacts
from eval.progress import ProgressFn
from eval.prompts import pick_prompts
from eval.promptsets import load_prompt_set
from eval.scoring import Answers
from eval.transcripts import read_rows
from eval.variants import needed_layers
from eval.verifier import VerifierParts
from harness.commands.verify import ReplayOptions
from harness.commands.verifytrained import check_against_training
from harness.corpus.answers import record_shared
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.check_replay import (
    findings_of,
    load_subject,
    possible_changes,
    require_same_sizes,
    summary_lines,
)
from harness.drafter.drafter import Drafter
from harness.drafter.findings import Finding
from harness.drafter.verifier import Verifier, verifier_digest

_MOST_K = 8


class ReplayCheck(NamedTuple):
    """What was found, and the figures that it comes from."""

    findings: list[Finding]
    lines: list[tuple[str, ...]]
    """Of a table: a reading, its acceptance length, what is gained by it, what its loss gains."""


def check_by_replay(
    drafter_path: Path,
    verifier: Verifier,
    parent_path: Path | None,
    options: ReplayOptions,
    progress: ProgressFn,
) -> ReplayCheck:
    """Replays a drafter as its config says and in every other reading of it.

    What the verifier says is kept below the settings' `replay_dir` and used again.

    Args:
        drafter_path: A drafter without errors in the rules that files can show.
        verifier: Whom it drafts for.
        parent_path: The drafter that it was finetuned from: its window, rope and embedding are
            tried, too.
        options: What is asked of the verifier, and where the answers are kept.
        progress: Told how far it is.

    Raises:
        CheckError: A kind of drafter that is not replayed, a parent of other sizes.
        ConfigError: A verifier whose parts are not known.
        EvalError: The prompts cannot be read or are too few, the verifier does not load.
    """
    settings = options.settings
    drafter = Drafter.load(drafter_path)
    parent = Drafter.load(parent_path) if parent_path else None
    require_same_sizes(drafter, parent)
    facts = verifier_facts(verifier, verifier_digest(verifier, settings.cache_dir))
    parts = VerifierParts.load(facts, torch.float32, default_device())
    subject = load_subject(drafter, draft_facts(drafter, verifier), parts)
    changes = possible_changes(drafter, subject, verifier, parent)
    layer_ids = needed_layers(changes, subject.facts)
    k = min(drafter.num_speculative_tokens or 3, _MOST_K)
    answers = _record(facts, options, layer_ids, k, progress)
    result = run_counterfactuals(subject, changes, answers, progress)
    findings = findings_of(result, drafter)
    if options.training:
        findings += check_against_training(subject, *options.training, facts)
    return ReplayCheck(findings, summary_lines(result))


def _record(
    verifier: VerifierFacts,
    options: ReplayOptions,
    layer_ids: tuple[int, ...],
    k: int,
    progress: ProgressFn,
) -> Answers:
    """The verifier's answers with the states of all layers that some reading asks for."""
    prompts = pick_prompts(load_prompt_set(options.prompts), options.num_prompts)
    recorded = record_shared(
        verifier,
        prompts,
        options.settings,
        max_tokens=options.max_tokens,
        k=k,
        aux_layer_ids=layer_ids,
        dtype="float32",
        progress=progress,
    )
    return Answers(read_rows(recorded), layer_ids, k)
