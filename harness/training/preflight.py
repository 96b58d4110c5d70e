"""What a training needs of this machine, looked at before it begins."""

from typing import Any, Literal

from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import HarnessError
from harness.settings import Settings, visible_gpus
from harness.tracking import preflight
from harness.tracking.audit import Check
from harness.tracking.resolve import resolve_drafter
from harness.training.estimate import estimate_training
from harness.training.plan import TrainPlan, find_folder
from harness.training.shape import DraftShape, inherited_shape, resolve_shape

Device = Literal["cpu", "cuda"]
_DTYPES = {"cuda": "bfloat16", "cpu": "float32"}


def check_training(
    config: TrainConfig, settings: Settings, *, is_anywhere: bool = False
) -> list[Check]:
    """The checks of a training; nothing is hashed and nothing is started.

    Args:
        config: The training.
        settings: Where things are.
        is_anywhere: Any of the visible GPUs will do, as for the trials of a sweep; else the first.
    """
    device: Device = "cuda" if config.device == "auto" and visible_gpus() else "cpu"
    verifier, verifier_check = preflight.check_verifier(config.verifier, settings)
    corpus, corpus_check = _check_corpus(config, settings)
    checks = [verifier_check, corpus_check, *(preflight.check_gpus() if device == "cuda" else ())]
    if verifier is not None and corpus is not None:
        room = _check_sizes(config, settings, verifier, corpus, device, is_anywhere=is_anywhere)
        checks += room
        trained = config.dtype if config.dtype != "auto" else _DTYPES[device]
        checks.append(preflight.check_states_dtype(corpus.dtype, trained, verifier))
    return [
        *checks,
        preflight.check_versions(),
        preflight.check_attention(config.attention, device),
        preflight.check_clock(settings.mlruns_dir),
    ]


def _check_corpus(config: TrainConfig, settings: Settings) -> tuple[Corpus | None, Check]:
    try:
        corpus = Corpus.load(find_folder(config.corpus, settings), deep=False)
    except HarnessError as error:
        found = error.message.splitlines()[0]
        return None, Check(name="corpus", state="failed", found=found, fix=error.hint)
    text = f"{corpus.dir}, {corpus.num_rows} rows, {corpus.num_tokens} tokens"
    return corpus, Check(name="corpus", state="ok", found=text)


def _check_sizes(
    config: TrainConfig,
    settings: Settings,
    verifier: Verifier,
    corpus: Corpus,
    device: Device,
    *,
    is_anywhere: bool,
) -> list[Check]:
    """Memory and disk, where the drafter's shape can be told."""
    try:
        shape = _find_shape(config, settings, verifier, corpus)
    except HarnessError as error:
        found = error.message.splitlines()[0]
        return [Check(name="drafter", state="failed", found=found, fix=error.hint)]
    known: dict[str, Any] = {"config": config, "shape": shape}
    needed = TrainPlan.model_construct(**known).needed_bytes
    estimate = estimate_training(config, shape, device)
    memory = preflight.check_memory(
        estimate.memory_bytes, device, config.nproc, is_anywhere=is_anywhere
    )
    return [
        memory,
        preflight.check_disk(settings.checkpoints_dir, needed, "checkpoints"),
    ]


def _find_shape(
    config: TrainConfig, settings: Settings, verifier: Verifier, corpus: Corpus
) -> DraftShape:
    if config.finetune_from is None:
        return resolve_shape(config, verifier, corpus.aux_layer_ids)
    parent = resolve_drafter(config.finetune_from, settings).path
    return inherited_shape(Drafter.load(parent), corpus.aux_layer_ids)
