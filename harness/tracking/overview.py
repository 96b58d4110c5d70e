"""What the runs table and a run's page show at once: figures on trainings, params on benches, text.

MLflow's table has one row a run: a training shows what a bench measured of it, and a bench what it
measured, so that the columns acceptance_length, decode_speedup, head_dim, lr sort both.
"""

from collections.abc import Mapping, Sequence

from eval.replayresult import ReplayResult
from eval.result import ALL, BenchResult, BenchRow
from harness.tracking import names
from harness.tracking.markdown import page_table, run_link
from harness.tracking.records import Checkpoint, Metric, RunSummary
from harness.tracking.run import Run
from harness.tracking.store import Store

_MIRRORED_PARAMS = (names.PARAM_HEAD_DIM, names.PARAM_LR)
_MIRRORED_TAGS = (names.TAG_FINETUNE_PARENT,)
_VALIDATED = {
    "loss": names.METRIC_VAL_LOSS,
    "acceptance length, validation": names.METRIC_VAL_ACCEPTANCE_LENGTH,
    "acceptance length, evaluation prompts": names.METRIC_EVAL_ACCEPTANCE_LENGTH,
}
_HIDDEN_STATES = "Computed from hidden states, not served: what a server would count."


def show_bench(
    run: Run,
    store: Store,
    result: BenchResult,
    figures: Mapping[str, Mapping[str, float]],
    best_model_id: str | None,
) -> None:
    """Makes a bench and the trainings of its drafters readable in the runs table.

    Args:
        run: The open bench run.
        store: The store of that run.
        result: What was measured.
        figures: By model id: what was measured of that checkpoint, under metric names.
        best_model_id: The checkpoint of the bench's best row; None where it is none.
    """
    checkpoints = {model_id: store.get_checkpoint(model_id) for model_id in figures}
    if best_model_id in checkpoints:
        _mirror_params(run, store, checkpoints[best_model_id])
    for run_id in dict.fromkeys(c.run_id for c in checkpoints.values()):
        own = {m: f for m, f in figures.items() if checkpoints[m].run_id == run_id}
        model_id = max(own, key=lambda m: own[m][names.METRIC_DECODE_SPEEDUP])
        training = store.attach_run(run_id)
        step = checkpoints[model_id].step
        training.log_metrics([Metric(key, value, step) for key, value in own[model_id].items()])
        training.set_tags({names.TAG_BENCH_RUN: run.run_id})
        rows = [r for r in result.pooled() if r.digest == checkpoints[model_id].digest]
        measured = f"Measured by bench {run_link(run.name, run.run_id)}:\n\n{_table(rows)}\n\n"
        known = store.checkpoints(run_id)
        training.set_description(measured + describe_training(store.get_run(run_id), known))
    run.set_description(describe_bench(result, checkpoints))


def describe_training(run: RunSummary, checkpoints: Sequence[Checkpoint]) -> str:
    """Markdown: what validation said of each checkpoint, and the parent."""
    shown = {
        head: key for head, key in _VALIDATED.items() if any(key in c.metrics for c in checkpoints)
    }
    rows = [
        (c.epoch, c.step, *(_rounded(c.metrics.get(key)) for key in shown.values()), c.digest[:12])
        for c in checkpoints
    ]
    told = page_table(("epoch", "step", *shown, "weights"), rows) if rows else "No checkpoint yet."
    parent = run.tags.get(names.TAG_FINETUNE_PARENT)
    if not parent:
        return f"Validation:\n\n{told}\n"
    link = run_link(names.short_reference(parent), run.tags.get(names.TAG_FINETUNE_PARENT_RUN))
    return f"Validation:\n\n{told}\n\nFinetuned from {link}.\n"


def describe_bench(result: BenchResult, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Markdown: the table of results, the conditions, links to the trainings."""
    spec = result.spec
    flags = "".join(
        f"- {names.short_reference(row.drafter)}, K = {row.k}, {row.concurrency} at once: {flag}\n"
        for row in result.pooled()
        for flag in row.flags
    )
    return (
        f"{_table(result.pooled())}\n\n{len(spec.prompts)} prompts, at most "
        f"{spec.sampling.max_tokens} tokens, {spec.confidence:.0%} intervals over prompts, "
        f"{result.pairing}.\n\n"
        + (f"**Read before use**\n\n{flags}\n" if flags else "")
        + _links(checkpoints)
        + "Artifacts: `bench/report.html` is the whole page, `figures/` the plots."
    )


def describe_replay(result: ReplayResult, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Markdown: acceptance length by drafter and K, what was replayed, links to the trainings."""
    rows = [
        (
            names.short_reference(drafter.drafter),
            row.k,
            row.num_prompts,
            row.acceptance_length.text() if row.acceptance_length else None,
            row.everywhere_length.text() if row.everywhere_length else None,
        )
        for drafter in result.drafters
        for row in drafter.rows
        if row.category == ALL
    ]
    head = ("drafter", "K", "prompts", "acceptance length (walk)", "all positions")
    return (
        f"{page_table(head, rows)}\n\n{_HIDDEN_STATES} "
        f"{result.num_answer_tokens:,} answer tokens of `{result.source}`.\n\n"
        f"{_links(checkpoints)}"
        "Artifacts: `replay/replay.html` is the whole page."
    )


def _links(checkpoints: Mapping[str, Checkpoint]) -> str:
    """A line for each checkpoint, and an empty one behind them."""
    lines = [
        f"- training of {run_link(c.name, c.run_id)}, weights `{c.digest[:12]}`\n"
        for c in checkpoints.values()
    ]
    return "".join(["**Trainings**\n\n", *lines, "\n"]) if lines else ""


def _mirror_params(run: Run, store: Store, checkpoint: Checkpoint) -> None:
    """The best drafter's settings on the bench, as columns of the same names."""
    training = store.get_run(checkpoint.run_id)
    known = {key: training.params[key] for key in _MIRRORED_PARAMS if key in training.params}
    run.log_params({key: _number(text) for key, text in known.items()})
    run.set_tags({key: training.tags[key] for key in _MIRRORED_TAGS if key in training.tags})


def _number(text: str) -> float | int | str:
    """A param as the number it stands for, so that it is mirrored as a metric, too."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _table(rows: Sequence[BenchRow]) -> str:
    head = ("drafter", "K", "at once", "acceptance length", "decode speedup")
    return page_table(
        head,
        [
            (
                names.short_reference(row.drafter),
                row.k,
                row.concurrency,
                row.acceptance_length.text() if row.acceptance_length else None,
                row.decode_speedup.text(),
            )
            for row in rows
            if row.category == ALL
        ],
    )


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
