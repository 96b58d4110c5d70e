"""Parity: the very outputs of a measurement replayed, and accepted counts compared by request.

It shows that replay, server and the change of drafters in place compute the same. Both read the
same config.json, so a wrong flag in it is not seen here: `eval.agreement` sees that.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from eval.answers import Answer
from eval.architecture import read_slots
from eval.breakdown import Trace
from eval.capture import default_device
from eval.cells import Cell
from eval.counters import AcceptanceCounts
from eval.device import served_dtype
from eval.draft import DraftModel, load_tensors
from eval.errors import SpecError
from eval.facts import DraftFacts, VerifierFacts
from eval.parityresult import Histogram, ParityReport, ParityRow, UnequalRequest
from eval.progress import ProgressFn
from eval.replay import trace
from eval.result import ALL, BenchResult, Interval
from eval.sequences import Row
from eval.spec import DrafterSpec
from eval.transcripts import digest_answers, read_rows, record_answers
from eval.verifier import VerifierParts
from eval.walk import walk_drafts

ArmKey = tuple[str, int, int]
"""Drafter, K, concurrency."""
Tokens = tuple[int, tuple[int, ...]]
"""Length of the prompt; tokens of prompt and answer."""


def check_parity(
    result: BenchResult,
    cells: Iterable[Cell],
    verifier: VerifierFacts,
    drafts: Mapping[str, DraftFacts],
    folder: Path,
    *,
    progress: ProgressFn,
) -> ParityReport:
    """Replays every answer that a measurement got with a drafter.

    In float32 on a CPU each request must have the served histogram, tokens counted past the end of
    an answer included: they are computed. Elsewhere batch shapes and kernels round differently, and
    the replayed acceptance length must lie within the served interval.

    Args:
        result: The measurement.
        cells: Its answers.
        verifier: Its verifier.
        drafts: Arithmetic by drafter name.
        folder: Where hidden states are kept; what is there already is not computed again.
        progress: Told how far it is.

    Raises:
        SpecError: Sampled answers, no answer of these drafters, or damaged files in the folder.
    """
    spec = result.spec
    if spec.sampling.temperature > 0:
        raise SpecError(
            f"parity: expected greedy answers, found temperature {spec.sampling.temperature}",
            "measure at temperature 0",
        )
    arms = _by_arm(cells, drafts)
    if not arms:
        raise SpecError("parity: expected answers with a drafter, found none", "name a drafter")
    stored = read_slots(verifier.path)[verifier.embed_key].dtype
    dtype = served_dtype(spec.server.dtype, named=verifier.dtype, stored=stored)
    replayer = _Replayer(verifier, arms, folder, dtype, progress)
    is_exact = dtype == "float32" and spec.server.device == "cpu"
    rows: list[ParityRow] = []
    for drafter in spec.drafters:
        own = {key: answers for key, answers in arms.items() if key[0] == drafter.name}
        if not own:
            continue
        traces = replayer.trace(drafter, drafts[drafter.name], own)
        for key, answers in own.items():
            interval = _served_interval(result, key)
            rows.append(compare_requests(key, answers, traces, interval, is_exact=is_exact))
        progress("replaying the outputs", len(rows), len(arms))
    return ParityReport(
        device=spec.server.device or "unknown",
        dtype=dtype,
        rows=tuple(rows),
        num_answers=len(replayer.answers),
        num_answer_tokens=sum(len(answer.token_ids) for answer in replayer.answers),
        states_s=replayer.states_s,
        replay_s=replayer.replay_s,
    )


def compare_requests(
    key: ArmKey,
    answers: Sequence[Answer],
    traces: Mapping[Tokens, Trace],
    interval: Interval | None,
    *,
    is_exact: bool,
) -> ParityRow:
    """Served and replayed histograms of one arm, request by request.

    Args:
        key: Which arm.
        answers: What it answered.
        traces: By tokens, what the drafter gets right from each entry; of a K at least this one's.
        interval: Of the served acceptance length.
        is_exact: Whether every request must be equal.
    """
    name, k, concurrency = key
    unequal: list[UnequalRequest] = []
    sums = np.zeros((2, k + 1), dtype=np.int64)
    for answer in answers:
        served = served_histogram(answer, k)
        replayed = replayed_histogram(traces[tokens_of(answer)], k)
        sums += (served, replayed)
        if served != replayed:
            unequal.append(
                UnequalRequest(
                    prompt_id=answer.prompt_id, turn=answer.turn, served=served, replayed=replayed
                )
            )
    served_counts, replayed_counts = (
        AcceptanceCounts.from_histogram(row, k * sum(row)) for row in sums.tolist()
    )
    return ParityRow(
        drafter=name,
        k=k,
        concurrency=concurrency,
        num_requests=len(answers),
        num_equal=len(answers) - len(unequal),
        unequal=tuple(unequal),
        served=served_counts,
        replayed=replayed_counts,
        served_low=interval.low if interval else None,
        served_high=interval.high if interval else None,
        is_exact=is_exact,
    )


def served_histogram(answer: Answer, k: int) -> Histogram:
    """What the server counted for a request, 0 to K; all zero where it says nothing was drafted.

    An engine that was started for a larger K sends a longer histogram.

    Raises:
        SpecError: It counts drafts that accepted more than K tokens.
    """
    found = answer.speculation.acceptance_histogram if answer.speculation else ()
    if any(found[k + 1 :]):
        raise SpecError(
            f"{answer.prompt_id}: expected at most {k} accepted tokens a draft, found {found}",
            "the cells of this folder were measured with a larger K; measure again",
        )
    return (*found, *[0] * (k + 1))[: k + 1]


def replayed_histogram(found: Trace, k: int) -> Histogram:
    """What the walk counts for a request, 0 to K."""
    histogram = [0] * (k + 1)
    for span in found.row.spans:
        for draft in walk_drafts(found.depths, span, k):
            histogram[draft.num_accepted] += 1
    return tuple(histogram)


def tokens_of(answer: Answer) -> Tokens:
    """What a request's replay depends on: equal ones are replayed once."""
    return len(answer.prompt_token_ids), answer.prompt_token_ids + answer.token_ids


class _Replayer:
    """Hidden states of all answers by aux layers, and drafters replayed over them."""

    def __init__(
        self,
        verifier: VerifierFacts,
        arms: Mapping[ArmKey, Sequence[Answer]],
        folder: Path,
        dtype: str,
        progress: ProgressFn,
    ) -> None:
        self._verifier = verifier
        self._folder = folder
        self._dtype = dtype
        self._progress = progress
        self._parts = VerifierParts.load(verifier, getattr(torch, dtype), default_device())
        self._largest_k = max(k for _, k, _ in arms)
        self._rows: dict[tuple[int, ...], dict[Tokens, Row]] = {}
        self.answers = list({tokens_of(a): a for own in arms.values() for a in own}.values())
        self.states_s: float | None = None
        self.replay_s = 0.0

    def trace(
        self, drafter: DrafterSpec, facts: DraftFacts, arms: Mapping[ArmKey, Sequence[Answer]]
    ) -> dict[Tokens, Trace]:
        """What a drafter gets right in the answers of its arms."""
        known = self._record(facts.aux_layer_ids)
        wanted = list(dict.fromkeys(tokens_of(a) for own in arms.values() for a in own))
        began = time.monotonic()
        model = DraftModel.beside(facts, load_tensors(drafter.path), self._parts)
        rows = [known[tokens] for tokens in wanted]
        by_row = {id(found.row): found for found in trace(model, rows, self._largest_k)}
        self.replay_s += time.monotonic() - began
        return {tokens: by_row[id(row)] for tokens, row in zip(wanted, rows, strict=True)}

    def _record(self, aux: tuple[int, ...]) -> dict[Tokens, Row]:
        if aux not in self._rows:
            found = record_answers(
                self._verifier,
                self.answers,
                self._folder / "-".join((*map(str, aux), digest_answers(self.answers)[:12])),
                num_beyond=self._largest_k,
                aux_layer_ids=aux,
                dtype=self._dtype,
                progress=self._progress,
            )
            if found.states_s is not None:
                self.states_s = (self.states_s or 0.0) + found.states_s
            self._rows[aux] = dict(zip(map(tokens_of, self.answers), read_rows(found), strict=True))
        return self._rows[aux]


def _by_arm(cells: Iterable[Cell], drafts: Mapping[str, DraftFacts]) -> dict[ArmKey, list[Answer]]:
    """The answers of drafters, blocks put together."""
    arms: dict[ArmKey, list[Answer]] = {}
    for cell in cells:
        if cell.key.k is not None and cell.key.arm in drafts:
            key = (cell.key.arm, cell.key.k, cell.key.concurrency)
            arms.setdefault(key, []).extend(cell.answers)
    return dict(sorted(arms.items()))


def _served_interval(result: BenchResult, key: ArmKey) -> Interval | None:
    full = {(row.drafter, row.k, row.concurrency): row.acceptance_length for row in result.pooled()}
    if key in full:
        return full[key]
    cut = {(row.drafter, row.k): row for row in result.acceptance_rows if row.category == ALL}
    return cut[key[:2]].acceptance_length if key[:2] in cut else None
