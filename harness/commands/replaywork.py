"""The computing side of `harness replay`: answers with hidden states in, one logged run out."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from eval.capture import default_device
from eval.draft import DraftModel, load_tensors
from eval.environment import describe_machine
from eval.progress import ProgressFn
from eval.prompts import pick_prompts
from eval.replay import check_greedy, replay_drafter
from eval.replaypage import render_replay
from eval.replayresult import DrafterReplay, GreedyCheck, ReplayResult
from eval.sequences import Row
from eval.speedup import Bootstrap
from eval.tokentext import Pieces, load_pieces
from eval.transcripts import read_rows as read_transcripts
from eval.verifier import VerifierParts
from harness.commands.replaying import Contestant, ReplayPlan
from harness.commands.work import (
    LOGGED,
    LoggedResult,
    log_views,
    model_ids,
    work_folder,
)
from harness.config.load import dump_yaml, flatten
from harness.config.replay import DEFAULT_UNEQUAL
from harness.corpus.answers import record_shared
from harness.corpus.rows import read_rows as read_corpus
from harness.digests import write_atomic
from harness.drafter.provenance import code_state
from harness.errors import CheckError, PrerequisiteError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.reaping import reap
from harness.tracking.replays import log_replay_result
from harness.tracking.store import Store

_RESULT_NAME = "result.json"
_PAGE_NAME = "replay.html"


class Arithmetic(NamedTuple):
    """In what numbers and where it is computed."""

    dtype: torch.dtype
    device: str

    @property
    def name(self) -> str:
        """As torch calls the dtype."""
        return str(self.dtype).removeprefix("torch.")


class Recording(NamedTuple):
    """What the verifier said, with hidden states of some layers."""

    rows: list[Row]
    dtype: str
    """Of the hidden states."""
    states_s: float | None
    """Seconds for answers and states; None where they were there."""


def run_replay(
    plan: ReplayPlan, settings: Settings, store: Store, progress: ProgressFn
) -> LoggedResult[ReplayResult]:
    """Replays what was planned, as one run.

    Raises:
        PrerequisiteError: There is no GPU and one was asked for.
        CheckError: The answers are not the verifier's greedy ones.
        EvalError: Hidden states cannot be made or read.
    """
    arithmetic = _choose_arithmetic(plan)
    out_dir = work_folder(settings.replay_dir, plan.fingerprint)
    measured = model_ids([one.resolved for one in plan.drafters])
    reap(store)
    with store.start_run(
        names.KIND_REPLAY,
        plan.config.name or _run_name(plan),
        experiment=names.EXPERIMENT_REPLAY,
        tags={**_tags(plan), **names.input_tags(measured.values())},
    ) as run:
        run.log_params(flatten(plan.config.model_dump(mode="json")))
        run.log_text("replay.yaml", dump_yaml(plan.config))
        result = _replay(plan, arithmetic, settings, progress)
        result.save(out_dir / _RESULT_NAME)
        log_replay_result(run, store, result, measured)
        page_path = out_dir / _PAGE_NAME
        log_views(run, names.KIND_REPLAY, page_path, render_replay(result), result.to_frame())
    write_atomic(out_dir / LOGGED, run.run_id)
    return LoggedResult(run.run_id, result, out_dir / _RESULT_NAME, page_path)


def _replay(
    plan: ReplayPlan, arithmetic: Arithmetic, settings: Settings, progress: ProgressFn
) -> ReplayResult:
    began = time.monotonic()
    parts = VerifierParts.load(plan.verifier_facts, arithmetic.dtype, arithmetic.device)
    load_s = time.monotonic() - began
    recordings: dict[tuple[int, ...], Recording] = {}
    greedy = GreedyCheck(num_checked=0, num_equal=0)
    pieces = load_pieces(plan.verifier.path)
    drafters = []
    for one in plan.drafters:
        layer_ids = one.facts.aux_layer_ids
        if layer_ids not in recordings:
            recordings[layer_ids] = _recording(plan, layer_ids, arithmetic, settings, progress)
            found = _require_greedy(plan, recordings[layer_ids], parts)
            greedy = GreedyCheck(
                num_checked=greedy.num_checked + found.num_checked,
                num_equal=greedy.num_equal + found.num_equal,
            )
        began = time.monotonic()
        model = DraftModel.beside(one.facts, load_tensors(one.resolved.path), parts)
        load_s += time.monotonic() - began
        rows = recordings[layer_ids].rows
        drafters.append(_replay_one(plan, one, model, rows, pieces=pieces, progress=progress))
    first = recordings[plan.drafters[0].facts.aux_layer_ids]
    seconds = [found.states_s for found in recordings.values() if found.states_s is not None]
    return ReplayResult(
        source=plan.source,
        source_digest=plan.source_digest,
        verifier=plan.verifier.reference,
        verifier_digest=plan.verifier_facts.digest,
        k=plan.config.k,
        dtype=arithmetic.name,
        confidence=plan.config.confidence,
        environment={**_conditions(plan), "device": arithmetic.device, **describe_machine()},
        num_sequences=len(first.rows),
        num_tokens=sum(len(row.token_ids) - row.num_beyond for row in first.rows),
        num_answer_tokens=sum(row.num_answer_tokens for row in first.rows),
        is_past_end_known=all(row.num_beyond >= plan.config.k - 1 for row in first.rows),
        greedy=greedy,
        drafters=tuple(drafters),
        states_s=sum(seconds) if seconds else None,
        load_s=load_s,
    )


def _replay_one(
    plan: ReplayPlan,
    one: Contestant,
    model: DraftModel,
    rows: Sequence[Row],
    *,
    pieces: Pieces | None,
    progress: ProgressFn,
) -> DrafterReplay:
    config, name = plan.config, one.resolved.reference
    return replay_drafter(
        model,
        rows,
        config.k,
        Bootstrap(confidence=config.confidence, num_resamples=config.num_resamples),
        name=name,
        digest=one.digest,
        pieces=pieces,
        budget_tokens=config.budget_tokens,
        progress=lambda done, total: progress(f"replaying {name}", done, total),
    )


def _recording(
    plan: ReplayPlan,
    layer_ids: tuple[int, ...],
    arithmetic: Arithmetic,
    settings: Settings,
    progress: ProgressFn,
) -> Recording:
    """Rows of the corpus, or the verifier's answers to the prompts, recorded if they are not."""
    config = plan.config
    if plan.corpus:
        rows = [row for row in read_corpus(plan.corpus) if row.spans]
        if config.num_prompts is not None:
            rows = list(pick_prompts(rows, config.num_prompts, config.prompts_seed))
        _require_vocab(plan, rows)
        return Recording(rows, plan.corpus.dtype, None)
    found = record_shared(
        plan.verifier_facts,
        plan.prompts,
        settings,
        max_tokens=config.max_tokens,
        k=config.k,
        aux_layer_ids=layer_ids,
        dtype=arithmetic.name,
        progress=progress,
    )
    seconds = [s for s in (found.answers_s, found.states_s) if s is not None]
    return Recording(read_transcripts(found), found.dtype, sum(seconds) if seconds else None)


def _require_greedy(plan: ReplayPlan, recording: Recording, parts: VerifierParts) -> GreedyCheck:
    """The answers must be what the verifier itself says after these hidden states."""
    found = check_greedy(recording.rows, parts)
    most = plan.config.max_unequal
    if most is None:
        most = DEFAULT_UNEQUAL.get(recording.dtype, DEFAULT_UNEQUAL["bfloat16"])
    if found.share_unequal is None:
        raise CheckError(
            "expected answer tokens to check, found none", "replay answers of the verifier"
        )
    if found.share_unequal > most:
        raise CheckError(
            f"{plan.source}: expected greedy answers of {plan.verifier.reference}, found "
            f"{found.num_checked - found.num_equal} of {found.num_checked} checked tokens "
            f"({found.share_unequal:.1%}) that it would not have said after these hidden states; "
            f"at most {most:.1%} may be so",
            "regenerate the answers at temperature 0 with this verifier, or set max_unequal",
        )
    return found


def _require_vocab(plan: ReplayPlan, rows: Sequence[Row]) -> None:
    if not rows:
        raise CheckError(f"expected answers to replay, found none in {plan.source}")
    largest = max(max(row.token_ids) for row in rows)
    if largest >= plan.verifier.vocab_size:
        raise CheckError(
            f"{plan.source}: expected token ids below {plan.verifier.vocab_size}, those of "
            f"{plan.verifier.reference}, found {largest}",
            "prepare the corpus with this verifier's tokenizer",
        )


def _conditions(plan: ReplayPlan) -> dict[str, str]:
    """What was asked, where it is not what a corpus holds."""
    return {} if plan.corpus else {"answer tokens at most": str(plan.config.max_tokens)}


def _choose_arithmetic(plan: ReplayPlan) -> Arithmetic:
    config = plan.config
    device = config.device
    if device == "auto":
        device = default_device()
    elif device == "cuda" and default_device() != "cuda":
        raise PrerequisiteError(
            "expected a GPU for device cuda, found none that torch can use",
            "set device to auto or cpu",
        )
    dtype = config.dtype
    if dtype == "auto":
        is_small = device == "cuda" and plan.verifier.dtype == "bfloat16"
        dtype = "bfloat16" if is_small else "float32"
    return Arithmetic(getattr(torch, dtype), device)


def _run_name(plan: ReplayPlan) -> str:
    verifier = names.short_reference(plan.verifier.reference)
    return names.base_run_name(names.KIND_REPLAY, [verifier, f"k{plan.config.k}"])


def _tags(plan: ReplayPlan) -> dict[str, str]:
    source = names.TAG_CORPUS_DIGEST if plan.corpus else names.TAG_PROMPTS_DIGEST
    return {
        names.TAG_VERIFIER: plan.verifier.reference,
        names.TAG_VERIFIER_DIGEST: plan.verifier_facts.digest,
        source: plan.source_digest,
        names.TAG_CODE_COMMIT: code_state().commit or "unknown",
    }
