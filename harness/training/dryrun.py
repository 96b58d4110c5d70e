"""What a training would be, before anything is there but its YAML: its drafter, what it takes.

A verifier that is not on this machine is taken from the folder `verifier` beside the YAML, which
holds a config.json alone; a corpus or parent that is not here yet is named as such.
"""

from collections.abc import Iterator
from pathlib import Path

from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import ConfigError, HarnessError, PrerequisiteError
from harness.settings import Settings, visible_gpus
from harness.tracking.resolve import resolve_drafter
from harness.training.estimate import estimate_training
from harness.training.plan import find_folder
from harness.training.shape import (
    DraftShape,
    inherited_shape,
    require_aux_layers,
    resolve_shape,
)

STAND_IN = "verifier"
"""Folder beside a YAML with the config.json of its verifier."""
Section = tuple[str, dict[str, object]]


def find_stand_in(config_path: Path | None) -> Path | None:
    """The folder with a verifier's config beside a YAML; None where there is none."""
    if config_path is None:
        return None
    folder = config_path.parent / STAND_IN
    return folder if (folder / "config.json").is_file() else None


def load_verifier(
    reference: str, settings: Settings, stand_in: Path | None
) -> tuple[Verifier, str | None]:
    """The verifier, or what its config alone says of it, and then why it is that.

    Raises:
        HarnessError: It is not here, and nothing stands in for it.
    """
    try:
        return Verifier.load(reference, settings), None
    except (ConfigError, PrerequisiteError) as error:
        if stand_in is None:
            raise
        found = Verifier.load(str(stand_in), settings, is_config_enough=True)
        return found.model_copy(update={"reference": reference}), error.message.splitlines()[0]


def describe_training(
    config: TrainConfig, settings: Settings, stand_in: Path | None
) -> Iterator[Section]:
    """Sections of names and values; nothing is started and nothing is written.

    Raises:
        ConfigError: The training could not start even with all inputs there.
    """
    verifier, absence = load_verifier(config.verifier, settings, stand_in)
    corpus, corpus_text = _find_corpus(config, settings)
    aux = corpus.aux_layer_ids if corpus else config.aux_layer_ids
    aux = aux or verifier.default_aux_layer_ids
    shape, parent_text = _find_shape(config, verifier, aux, settings)
    require_aux_layers(shape, aux)
    yield (
        "training",
        {
            "verifier": config.verifier,
            "its weights": "here" if absence is None else f"not here: {absence}",
            "corpus": corpus_text,
            "parent": parent_text,
            "draft vocabulary": config.vocab_policy if config.finetune_from else "by frequency",
        },
    )
    yield "drafter", _drafter_facts(shape)
    names = (
        "ttt_steps", "loss", "noise", "optimizer", "lr", "scheduler", "warmup_ratio", "epochs",
        "total_seq_len", "nproc", "sharding", "dtype", "attention",
    )  # fmt: skip
    yield "arithmetic", config.model_dump(include=set(names))
    yield "estimate", _estimate(config, shape, corpus)


def _find_corpus(config: TrainConfig, settings: Settings) -> tuple[Corpus | None, str]:
    folder = find_folder(config.corpus, settings)
    if not folder.is_dir():
        return None, f"{config.corpus}: not made yet (harness data extract)"
    corpus = Corpus.load(folder, deep=False)
    return corpus, f"{config.corpus}: {corpus.num_rows} rows, {corpus.num_tokens} tokens"


def _find_shape(
    config: TrainConfig, verifier: Verifier, aux: tuple[int, ...], settings: Settings
) -> tuple[DraftShape, str]:
    """The shape, and what is known of the parent."""
    if config.finetune_from is None:
        return resolve_shape(config, verifier, aux), "none: from scratch"
    try:
        path = resolve_drafter(config.finetune_from, settings).path
    except HarnessError as error:
        reason = error.message.splitlines()[0]
        text = f"not here: {reason}; the shape below is the YAML's, to be held against its tensors"
        return resolve_shape(config, verifier, aux), text
    return inherited_shape(Drafter.load(path), aux), f"{config.finetune_from}: {path}"


def _drafter_facts(shape: DraftShape) -> dict[str, object]:
    query = (shape.num_heads * shape.head_dim, 2 * shape.hidden_size)
    return {
        "hidden_size": shape.hidden_size,
        "heads": f"{shape.num_heads} query, {shape.num_kv_heads} key and value",
        "head_dim": f"{shape.head_dim} (from the {shape.head_dim_source})",
        "q_proj": f"[{query[0]}, {query[1]}]",
        "intermediate_size": shape.intermediate_size,
        "aux_layer_ids": ", ".join(map(str, shape.aux_layer_ids)),
        "vocabulary": f"{shape.draft_vocab_size} of {shape.vocab_size}",
        "trained parameters": f"{shape.num_trainable:,}",
    }


def _estimate(config: TrainConfig, shape: DraftShape, corpus: Corpus | None) -> dict[str, object]:
    device = "cuda" if config.device == "auto" and visible_gpus() else "cpu"
    found = estimate_training(config, shape, device)
    steps: object = "unknown without the corpus"
    if corpus is not None:
        tokens = corpus.num_tokens * (1 - config.val_ratio)
        steps = round(config.epochs * tokens / (config.total_seq_len * config.nproc))
    return {
        "memory": f"{found.memory_bytes / 1e9:.1f} GB ({device})"
        + (f" in each of {config.nproc} processes" if config.nproc > 1 else ""),
        "a checkpoint": f"{found.checkpoint_bytes / 1e9:.2f} GB",
        "its optimiser state": f"{found.optimizer_bytes / 1e9:.2f} GB, while it trains",
        "kept": f"the {config.keep_best} best, the last and the registered",
        "steps": steps,
    }
