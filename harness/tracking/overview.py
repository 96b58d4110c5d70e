"""What the runs table and a run's page show at once: figures on trainings, params on benches, text.

MLflow's table has one row a run: a training shows what a bench measured of it, and a bench what it
measured, so that the columns acceptance_length, decode_speedup, head_dim, lr sort both.
"""

from collections.abc import Mapping

from eval.result import ALL, BenchResult, BenchRow
from harness.tracking import names
from harness.tracking.records import Checkpoint, Metric
from harness.tracking.run import Run
from harness.tracking.store import Store

_MIRRORED_PARAMS = (names.PARAM_HEAD_DIM, names.PARAM_LR)
_MIRRORED_TAGS = (names.TAG_FINETUNE_PARENT,)


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
        summary = store.get_run(run_id)
        training.set_description(
            f"Measured by [bench `{run.name}`](#/runs/{run.run_id}):\n\n"
            + _table([r for r in result.pooled() if r.digest == checkpoints[model_id].digest])
            + _parent_line(summary.tags)
        )
    run.set_description(describe_bench(result, checkpoints))


def describe_bench(result: BenchResult, checkpoints: Mapping[str, Checkpoint]) -> str:
    """Markdown: the table of results, the conditions, links to the trainings."""
    spec = result.spec
    links = "".join(
        f"- [training of `{c.name}`](#/runs/{c.run_id}), weights `{c.digest[:12]}`\n"
        for c in checkpoints.values()
    )
    flags = "".join(f"- {row.drafter}: {flag}\n" for row in result.pooled() for flag in row.flags)
    return (
        f"{_table(result.pooled())}\n{len(spec.prompts)} prompts, at most "
        f"{spec.sampling.max_tokens} tokens, {spec.confidence:.0%} intervals over prompts, "
        f"{result.pairing}.\n\n"
        + (f"**Read before use**\n{flags}\n" if flags else "")
        + (f"{links}\n" if links else "")
        + "Artifacts: `bench/report.html` is the whole page, `figures/` the plots."
    )


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


def _table(rows: tuple[BenchRow, ...] | list[BenchRow]) -> str:
    lines = [
        "| drafter | K | at once | acceptance length | decode speedup |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row.category == ALL:
            length = row.acceptance_length.text() if row.acceptance_length else "-"
            name = names.short_reference(row.drafter).replace("|", "/")
            lines.append(
                f"| {name} | {row.k} | {row.concurrency} | {length} | {row.decode_speedup.text()} |"
            )
    return "\n".join(lines) + "\n"


def _parent_line(tags: Mapping[str, str]) -> str:
    parent = tags.get(names.TAG_FINETUNE_PARENT)
    run_id = tags.get(names.TAG_FINETUNE_PARENT_RUN)
    if not parent:
        return ""
    shown = names.short_reference(parent)
    return f"\nFinetuned from {f'[{shown}](#/runs/{run_id})' if run_id else f'`{shown}`'}.\n"
