"""A replay's result in the store: the document is the truth, metrics beside it are for sorting."""

from collections.abc import Mapping

from pydantic import ValidationError

from eval.replaypage import best_of
from eval.replayresult import DrafterReplay, ReplayResult
from eval.result import Interval
from harness.errors import TrackingError
from harness.tracking import names
from harness.tracking.evaluated import log_evaluated
from harness.tracking.overview import describe_replay
from harness.tracking.records import Metric
from harness.tracking.run import Run
from harness.tracking.store import Store


def log_replay_result(
    run: Run, store: Store, result: ReplayResult, model_ids: Mapping[str, str]
) -> None:
    """Puts a result on its run: document, inputs, figures of each checkpoint and of the best.

    Args:
        run: The open replay run.
        store: The store of that run.
        result: What was replayed.
        model_ids: Drafter name to model id, of the drafters that are checkpoints of this store.
    """
    run.log_text(names.ARTIFACT_REPLAY_RESULT, result.model_dump_json(indent=1))
    best = best_of(result)
    run.set_tags(
        {
            names.TAG_DRAFTER_DIGESTS: {d.drafter: d.digest for d in result.drafters},
            names.TAG_BEST_DRAFTER: best.drafter,
        }
    )
    figures = {
        model_ids[drafter.drafter]: replay_metrics(drafter)
        for drafter in result.drafters
        if drafter.drafter in model_ids
    }
    counts = {
        "num_prompts": best.pooled().num_prompts,
        "num_answer_tokens": result.num_answer_tokens,
    }
    log_evaluated(run, store, (result.source, result.source_digest), counts, figures)
    checkpoints = {model_id: store.get_checkpoint(model_id) for model_id in figures}
    run.set_description(describe_replay(result, checkpoints))
    points = [Metric(key, value) for key, value in replay_metrics(best).items()]
    by_k = [(k, best.pooled(k).acceptance_length) for k in range(1, result.k + 1)]
    points += [
        Metric(names.METRIC_REPLAY_LENGTH_BY_K, length.value, step=k)
        for k, length in by_k
        if length
    ]
    points.append(Metric(names.METRIC_REPLAY_SECONDS, sum(d.replay_s for d in result.drafters)))
    run.log_metrics(points)


def read_replay_result(store: Store, run_id: str) -> ReplayResult:
    """The document of a replay run.

    Raises:
        TrackingError: There is none, or it was written by another version.
    """
    text = store.read_text(run_id, names.ARTIFACT_REPLAY_RESULT)
    if text is None:
        raise TrackingError(f"replay run {run_id} has no artifact {names.ARTIFACT_REPLAY_RESULT}")
    try:
        return ReplayResult.model_validate_json(text)
    except ValidationError as error:
        raise TrackingError(
            f"the replay result of run {run_id} was written by another version: {error}",
            "replay again with harness replay",
        ) from error


def replay_metrics(drafter: DrafterReplay) -> dict[str, float]:
    """The figures at the largest K under their metric names; what is not known is left out."""
    row = drafter.pooled()
    walk = row.acceptance_length
    figures: dict[str, float | None] = {
        names.METRIC_NUM_SPECULATIVE_TOKENS: row.k,
        names.METRIC_NUM_PROMPTS: row.num_prompts,
        names.METRIC_REPLAY_LENGTH: _value(walk),
        names.METRIC_REPLAY_LENGTH_LOW: walk.low if walk else None,
        names.METRIC_REPLAY_LENGTH_HIGH: walk.high if walk else None,
        names.METRIC_REPLAY_LENGTH_EMITTED: _value(row.acceptance_length_emitted),
        names.METRIC_REPLAY_EVERYWHERE: _value(row.everywhere_length),
        names.METRIC_REPLAY_CEILING: row.ceiling,
    }
    for position, rate in enumerate(row.acceptance_rate_at, start=1):
        figures[names.METRIC_REPLAY_RATE_AT.format(position=position)] = rate
    return {key: float(value) for key, value in figures.items() if value is not None}


def _value(interval: Interval | None) -> float | None:
    return interval.value if interval else None
