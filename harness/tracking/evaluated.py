"""What an evaluation was made of, on its run: the data set, the checkpoints, each one's figures."""

from collections.abc import Mapping

from harness.tracking.run import Run
from harness.tracking.store import Store


def log_evaluated(
    run: Run,
    store: Store,
    dataset: tuple[str, str],
    counts: Mapping[str, int],
    figures: Mapping[str, Mapping[str, float]],
) -> None:
    """Links the data set and the checkpoints to the run, and the figures to each checkpoint.

    Args:
        run: The open run.
        store: The store of that run.
        dataset: Name and digest of what was asked.
        counts: How much that is.
        figures: By model id: figures under their metric names.
    """
    name, digest = dataset
    run.log_dataset(name, name, digest, "evaluation", counts)
    run.log_model_inputs(sorted(figures))
    for model_id, metrics in figures.items():
        store.log_model_metrics(model_id, run.run_id, metrics, name, digest)
