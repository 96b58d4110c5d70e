"""What is written of a training before it begins: the words of its name, params and inputs."""

import json
from pathlib import Path

from harness.config.load import dump_yaml, flatten
from harness.digests import write_atomic
from harness.tracking import names
from harness.tracking.run import Run
from harness.tracking.store import Store
from harness.training.origin import build_provenance, lineage_tags
from harness.training.plan import TrainPlan
from harness.training.resume import CONFIG_NAME

_UNRESOLVED = {"device", "attention", "loss_implementation", "dtype", "num_workers", "name"}
"""Settled by the child, which says what it took."""


def name_parts(plan: TrainPlan) -> tuple[str, ...]:
    """What tells a training from others, in the words of its run's name."""
    return (
        names.short_reference(plan.config.verifier),
        f"hd{plan.shape.head_dim}",
        f"lr{names.short_number(plan.config.lr)}",
        "finetune" if plan.prepared else "",
    )


def build_params(plan: TrainPlan) -> dict[str, object]:
    """Every hyperparameter as it was resolved, the shape over what was asked for."""
    config = plan.config.model_dump(mode="json", exclude=_UNRESOLVED)
    facts = {
        "num_corpus_tokens": plan.corpus.num_tokens,
        "num_corpus_conversations": plan.corpus.num_conversations,
        "checkpoint_dtype": "bfloat16",
    }
    return flatten(config | plan.shape.model_dump(mode="json") | facts)


def log_inputs(run: Run, plan: TrainPlan, folder: Path, store: Store) -> None:
    """Configuration, provenance and corpus, before anything is trained."""
    text = dump_yaml(plan.config)
    write_atomic(folder / CONFIG_NAME, text)
    run.log_text(f"config/{CONFIG_NAME}", text)
    run.log_text("config/drafter.json", json.dumps(plan.draft_config, indent=2))
    provenance = build_provenance(plan)
    run.log_text(names.ARTIFACT_PROVENANCE, provenance.model_dump_json(indent=2))
    run.set_tags(lineage_tags(provenance, store))
    corpus = plan.corpus
    run.log_dataset(
        corpus.dir.name,
        str(corpus.dir),
        corpus.digest,
        "training",
        {
            "conversations": corpus.num_conversations,
            "tokens": corpus.num_tokens,
            "loss_tokens": corpus.num_loss_tokens,
        },
    )
    if plan.parent and plan.parent.model_id:
        run.log_model_inputs([plan.parent.model_id])
