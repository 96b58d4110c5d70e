"""A store with a training run of two checkpoints and, if asked, a bench of them."""

from pathlib import Path
from typing import Any

from fakes.bench_results import bench_result, bench_row, interval
from fakes.tiny_models import write_tiny_drafter, write_tiny_verifier

from harness.drafter.drafter import drafter_digest
from harness.drafter.provenance import CodeState, Provenance
from harness.settings import Settings
from harness.tracking import measurements, names
from harness.tracking.run import Run
from harness.tracking.store import Store

DIGEST = "ab" * 32
PROVENANCE = Provenance(
    parent=None,
    d2t_policy="fresh",
    d2t_sha256=DIGEST,
    verifier_reference="verifier",
    verifier_revision=None,
    verifier_digest=DIGEST,
    corpus_digest=DIGEST,
    head_dim=8,
    head_dim_source="given",
    code=CodeState(commit="c0ffee", is_dirty=False, diff_sha256=None),
    versions={},
    argv=(),
    hardware={},
)


def train(
    store: Store, settings: Settings, config: dict[str, Any] | None = None, **tags: str
) -> tuple[str, list[str]]:
    """One run with checkpoints of epochs 0 and 1; returns its id and their model ids.

    `config` changes the checkpoints' config.json, `tags` those of the run.
    """
    verifier = write_tiny_verifier(settings.root_dir / "verifier")
    marks = {
        names.TAG_VERIFIER: str(verifier),
        names.TAG_VERIFIER_DIGEST: DIGEST,
        names.TAG_CORPUS_DIGEST: DIGEST,
        names.TAG_CODE_COMMIT: "c0ffee",
        **tags,
    }
    with store.start_run(
        names.KIND_TRAIN, "train tiny", experiment=names.EXPERIMENT_TRAIN, tags=marks
    ) as run:
        run.log_params({"head_dim": 8, "head_dim_source": "given", "lr": 1e-3})
        run.log_dataset("corpus", "/corpus", DIGEST, "training")
        run.log_text(names.ARTIFACT_PROVENANCE, PROVENANCE.model_dump_json())
        models = [_checkpoint(store, run, settings, epoch, config or {}) for epoch in (0, 1)]
    return run.run_id, models


def bench(
    store: Store,
    model_ids: list[str],
    verifier: Path,
    *,
    digests: list[str] | None = None,
    verifier_digest: str = DIGEST,
    result_changes: dict[str, object] | None = None,
    **changes: object,
) -> str:
    """A finished bench: the first checkpoint accepts 1.6 tokens a draft, the second 1.8."""
    checkpoints = [store.get_checkpoint(model_id) for model_id in model_ids]
    rows = tuple(
        bench_row(
            c.name,
            digests[i] if digests else c.digest,
            **{"acceptance_length": interval(1.6 + 0.2 * i), **changes},
        )
        for i, c in enumerate(checkpoints)
    )
    result = bench_result(rows, {c.name: c.path for c in checkpoints})
    result = result.model_copy(update=result_changes or {})
    tags = {names.TAG_VERIFIER: str(verifier), names.TAG_VERIFIER_DIGEST: verifier_digest}
    with store.start_run(
        names.KIND_BENCH, "bench tiny", experiment=names.EXPERIMENT_BENCH, tags=tags
    ) as run:
        measurements.log_bench_result(run, store, result, {c.name: c.model_id for c in checkpoints})
    return run.run_id


def _checkpoint(
    store: Store, run: Run, settings: Settings, epoch: int, config: dict[str, Any]
) -> str:
    folder = settings.checkpoints_dir / run.run_id / str(epoch)
    path = write_tiny_drafter(folder, seed=epoch, **config)
    model_id = run.log_checkpoint(
        f"epoch-{epoch}", path, step=10 * (epoch + 1), epoch=epoch, digest=drafter_digest(path)
    )
    store.log_model_metrics(model_id, run.run_id, {names.METRIC_VAL_LOSS: 3.0 - epoch})
    return model_id
