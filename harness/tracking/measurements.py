"""A bench result in the store: written by `bench`, read back as evidence by `promote`.

The typed document is the truth; metrics and tags beside it are there to sort and to search by.
"""

import hashlib
from collections.abc import Mapping

from pydantic import ValidationError

from eval.errors import EvalError
from eval.result import BenchResult, BenchRow
from harness.errors import TrackingError
from harness.tracking import names
from harness.tracking.evaluated import log_evaluated
from harness.tracking.overview import show_bench
from harness.tracking.records import Metric
from harness.tracking.run import Run
from harness.tracking.store import Store


def log_bench_result(
    run: Run, store: Store, result: BenchResult, model_ids: Mapping[str, str]
) -> None:
    """Puts a result on its run: document, inputs, figures of each checkpoint and of the best.

    Args:
        run: The open bench run.
        store: The store of that run.
        result: What was measured.
        model_ids: Drafter name to model id, of the drafters that are checkpoints of this store.
    """
    log_bench_document(run, result)
    run.set_tags(
        {
            names.TAG_PROMPTS_DIGEST: result.prompts_digest,
            names.TAG_VLLM_VERSION: result.engines[0].vllm_version if result.engines else None,
            names.TAG_DRAFTER_DIGESTS: {d.name: d.digest for d in result.spec.drafters},
        }
    )
    figures = {
        model_id: row_metrics(best_row(result, drafter)) for drafter, model_id in model_ids.items()
    }
    log_evaluated(
        run,
        store,
        (result.spec.prompts_name, result.prompts_digest),
        {"num_prompts": len(result.spec.prompts)},
        figures,
    )
    best = result.best
    run.log_metrics([Metric(key, value) for key, value in row_metrics(best).items()])
    run.set_tags({names.TAG_BEST_DRAFTER: best.drafter})
    show_bench(run, store, result, figures, model_ids.get(best.drafter))


def log_bench_document(run: Run, result: BenchResult) -> None:
    """Puts the document on its run, in place of one without a parity report."""
    text = result.model_dump_json(indent=1)
    run.log_text(names.ARTIFACT_BENCH_RESULT, text)
    run.set_tags({names.TAG_BENCH_SHA256: hashlib.sha256(text.encode()).hexdigest()})
    if result.parity is not None:
        counts = {
            names.METRIC_PARITY_NUM_EQUAL: result.parity.num_equal,
            names.METRIC_PARITY_NUM_REQUESTS: result.parity.num_requests,
        }
        run.log_metrics([Metric(key, float(value)) for key, value in counts.items()])
        run.set_tags({names.TAG_PARITY: "passed" if result.parity.is_passed else "failed"})


def read_bench_result(store: Store, run_id: str) -> BenchResult:
    """The document of a bench run, as it was written.

    Raises:
        TrackingError: There is none, it cannot be read, or it was changed after it was written.
    """
    text = store.read_text(run_id, names.ARTIFACT_BENCH_RESULT)
    if text is None:
        raise TrackingError(f"bench run {run_id} has no artifact {names.ARTIFACT_BENCH_RESULT}")
    found = hashlib.sha256(text.encode()).hexdigest()
    expected = store.get_run(run_id).tags.get(names.TAG_BENCH_SHA256)
    if found != expected:
        raise TrackingError(
            f"{names.ARTIFACT_BENCH_RESULT} of run {run_id} was changed after it was written: "
            f"expected sha256 {expected}, found {found}",
            "measure again with harness bench",
        )
    try:
        return BenchResult.model_validate_json(text)
    except (ValidationError, EvalError) as error:
        raise TrackingError(
            f"the bench result of run {run_id} was written by another version: {error}",
            "measure again with harness bench",
        ) from error


def ranked_rows(result: BenchResult) -> tuple[BenchRow, ...]:
    """What drafters are ranked by: over all prompts, at the lowest concurrency, one row a K."""
    lowest = min(result.spec.concurrency)
    return tuple(row for row in result.pooled() if row.concurrency == lowest)


def rows_of(result: BenchResult, drafter: str) -> tuple[BenchRow, ...]:
    """Those of one drafter."""
    return tuple(row for row in ranked_rows(result) if row.drafter == drafter)


def best_row(result: BenchResult, drafter: str) -> BenchRow:
    """The row at the K where this drafter decodes fastest."""
    return max(rows_of(result, drafter), key=lambda row: row.decode_speedup.value)


def is_lossless(row: BenchRow) -> bool | None:
    """Whether greedy answers equalled the baseline's; None when that was not compared.

    An answer that parts from the baseline where its two best tokens are nearly tied is no loss:
    the verifier itself would not repeat it in another batch.
    """
    if row.lossless is None or not row.lossless.num_compared:
        return None
    return not row.lossless.is_broken


def row_metrics(row: BenchRow) -> dict[str, float]:
    """The figures of a row under their metric names; what was not measured is left out."""
    figures: dict[str, float | None] = {
        names.METRIC_NUM_SPECULATIVE_TOKENS: row.k,
        names.METRIC_CONCURRENCY: row.concurrency,
        names.METRIC_NUM_PROMPTS: row.num_prompts,
        names.METRIC_TPOT_MS: row.tpot_ms.value,
        names.METRIC_BASELINE_TPOT_MS: row.baseline_tpot_ms.value,
        names.METRIC_DECODE_SPEEDUP: row.decode_speedup.value,
        names.METRIC_DECODE_SPEEDUP_LOW: row.decode_speedup.low,
        names.METRIC_DECODE_SPEEDUP_HIGH: row.decode_speedup.high,
    }
    if row.acceptance_length:
        figures[names.METRIC_ACCEPTANCE_LENGTH] = row.acceptance_length.value
        figures[names.METRIC_ACCEPTANCE_LENGTH_LOW] = row.acceptance_length.low
        figures[names.METRIC_ACCEPTANCE_LENGTH_HIGH] = row.acceptance_length.high
    if row.acceptance_rate:
        figures[names.METRIC_ACCEPTANCE_RATE] = row.acceptance_rate.value
    for position, rate in enumerate(row.acceptance_rate_at, start=1):
        figures[names.METRIC_ACCEPTANCE_RATE_AT.format(position=position)] = rate
    lossless = is_lossless(row)
    figures[names.METRIC_IS_LOSSLESS] = None if lossless is None else float(lossless)
    return {key: float(value) for key, value in figures.items() if value is not None}
