"""Everything settled and checked before a training costs anything: what goes in, what comes out.

A wrong verifier, corpus, parent or disk is refused here, before a run is opened.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from eval.progress import ProgressFn
from eval.prompts import pick_prompts
from eval.promptsets import load_prompt_set
from eval.spec import Prompt
from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.corpus.draftvocab import DraftVocab
from harness.corpus.hidden_states import Corpus
from harness.digests import digest_json, write_atomic
from harness.drafter.drafter import Drafter
from harness.drafter.finetune import PreparedParent, prepare_parent
from harness.drafter.provenance import package_versions
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import PrerequisiteError
from harness.settings import Settings
from harness.tracking.resolve import (
    ResolvedDrafter,
    recognise,
    require_unchanged,
    resolve_drafter,
)
from harness.tracking.store import Store
from harness.training.folders import EPOCHS_DIR, WEIGHTS_NAME
from harness.training.messages import TrainJob
from harness.training.refusals import require_devices, require_trainable, require_validation
from harness.training.shape import (
    DraftShape,
    build_config,
    inherited_shape,
    require_aux_layers,
    resolve_shape,
)
from harness.training.verifier_view import write_view
from harness.training.vocab import settle_vocab

_NO_ARITHMETIC = {
    "name", "verifier", "corpus", "finetune_from", "keep_best", "upload_below_mb", "smoke",
    "num_workers", "log_every_steps", "replay_tokens", "replay_k", "eval_prompts",
    "eval_num_prompts", "eval_max_tokens", "states_endpoint", "draft_vocab",
}  # fmt: skip
_OF_GANGS = {"nproc", "sharding"}
_SPARE_FOLDERS = 2
"""The last checkpoint and the one being written, beside the best."""
_PREPARED = "parent"
_DRAFT = "draft"
_VIEW = "verifier"


class TrainPlan(Frozen):
    """A training that can start."""

    config: TrainConfig
    verifier: Verifier
    verifier_digest: str
    corpus: Corpus
    shape: DraftShape
    draft_config: dict[str, Any]
    parent: ResolvedDrafter | None
    prepared: PreparedParent | None
    draft_vocab_dir: Path | None = None
    warnings: tuple[str, ...]
    eval_prompts: tuple[Prompt, ...] = ()
    fingerprint: str
    """Equal for trainings that would give the same weights: config, data, parent, versions."""

    @property
    def needed_bytes(self) -> int:
        """Disk that the checkpoints take at most."""
        num_parts = 1 if self.config.checkpoint_freq < 1 else 0
        kept = self.config.keep_best + _SPARE_FOLDERS + num_parts
        uploads = self.shape.checkpoint_bytes
        is_uploading = uploads < self.config.upload_below_bytes
        return (
            kept * uploads
            + _SPARE_FOLDERS * self.shape.optimizer_bytes
            + (self.config.epochs * uploads if is_uploading else 0)
        )


def build_plan(
    config: TrainConfig,
    settings: Settings,
    store: Store,
    progress: ProgressFn,
) -> TrainPlan:
    """Loads and checks what a training needs; a parent is prepared in a folder of its own.

    Raises:
        ConfigError: A reference or value makes no sense, or contradicts another.
        CheckError: The corpus was made with another verifier, or a file is not what it was.
        PrerequisiteError: Too little disk space.
    """
    verifier = Verifier.load(config.verifier, settings)
    require_trainable(verifier)
    require_devices(config)
    corpus = Corpus.load(find_folder(config.corpus, settings), deep=False)
    digest = verifier_digest(verifier, settings.cache_dir)
    corpus.require_verifier(verifier, digest)
    require_validation(config, corpus)
    eval_prompts = _eval_prompts(config, settings)
    folder = find_folder(config.draft_vocab, settings) if config.draft_vocab else None
    vocab, config = settle_vocab(config, verifier, digest, folder)
    parent, prepared = None, None
    if config.finetune_from is None:
        shape = resolve_shape(config, verifier, corpus.aux_layer_ids)
        document = build_config(shape, verifier, config.ttt_steps)
    else:
        parent = resolve_drafter(config.finetune_from, settings, store)
        parent = recognise(parent, settings, store)
        require_unchanged(parent, store)
        prepared = _prepare(parent, verifier, config, corpus, settings, vocab=vocab)
        shape = inherited_shape(Drafter.load(prepared.path), corpus.aux_layer_ids)
        document = _inherited_config(prepared, config, shape)
    require_aux_layers(shape, corpus.aux_layer_ids)
    # Every byte is read only now that nothing cheaper speaks against it.
    Corpus.load(corpus.dir, progress=progress)
    plan = TrainPlan(
        config=config,
        verifier=verifier,
        verifier_digest=digest,
        corpus=corpus,
        shape=shape,
        draft_config=document,
        parent=parent,
        prepared=prepared,
        draft_vocab_dir=vocab.folder if vocab else None,
        warnings=prepared.warnings if prepared else (),
        eval_prompts=eval_prompts,
        fingerprint=_fingerprint(config, digest, corpus, document, prepared, vocab=vocab),
    )
    require_space(plan, settings)
    return plan


def find_folder(reference: str, settings: Settings) -> Path:
    """A folder named in a configuration: as it stands, else below the project folder."""
    path = Path(reference).expanduser()
    return path if path.is_dir() else settings.root_dir / path


def require_space(plan: TrainPlan, settings: Settings) -> None:
    """Refuses a training whose checkpoints would not fit.

    Raises:
        PrerequisiteError: Says how much is needed, how much is free, and what to change.
    """
    folder = settings.checkpoints_dir
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < plan.needed_bytes:
        raise PrerequisiteError(
            f"the checkpoints need up to {plan.needed_bytes / 1e9:.1f} GB "
            f"({plan.config.epochs} epochs of {plan.shape.checkpoint_bytes / 1e9:.2f} GB, "
            f"keep_best {plan.config.keep_best}), {folder} has {free / 1e9:.1f} GB free",
            "free space, lower keep_best, or set upload_below_mb: 0",
        )


def write_job(plan: TrainPlan, folder: Path, **changes: object) -> Path:
    """Puts everything the child reads into a run's folder and returns the job's path."""
    weights = None
    if plan.prepared is not None:
        weights = folder / _PREPARED / WEIGHTS_NAME
        if not weights.exists():
            shutil.copytree(plan.prepared.path, weights.parent, dirs_exist_ok=True)
    draft_dir = folder / _DRAFT
    write_atomic(draft_dir / "config.json", json.dumps(plan.draft_config, indent=2) + "\n")
    tensors = plan.prepared.tensors if plan.prepared else ()
    job = TrainJob(
        config=plan.config,
        draft_config_dir=draft_dir,
        draft_vocab_size=plan.shape.draft_vocab_size,
        aux_layer_ids=plan.shape.aux_layer_ids,
        verifier_path=write_view(plan.verifier, folder / _VIEW),
        tokens_dir=plan.corpus.tokens_dir,
        hidden_states_dir=plan.corpus.hidden_states_dir,
        token_freq_path=plan.corpus.tokens_dir / "token_freq.pt",
        draft_vocab_dir=plan.draft_vocab_dir,
        parent_weights=weights,
        fresh_tensors=tuple(tensor.name for tensor in tensors if tensor.action == "fresh"),
        shared_tensors=tuple(tensor.name for tensor in tensors if tensor.action == "shared"),
        save_dir=folder / EPOCHS_DIR,
    )
    path = folder / "job.json"
    write_atomic(path, job.model_copy(update=changes).model_dump_json(indent=2))
    return path


def _eval_prompts(config: TrainConfig, settings: Settings) -> tuple[Prompt, ...]:
    """The prompts that checkpoints are replayed on; none where nothing is replayed."""
    if config.eval_prompts is None or not config.replay_tokens:
        return ()
    place = settings.root_dir / config.eval_prompts
    prompts = load_prompt_set(str(place) if place.exists() else config.eval_prompts)
    limit = config.eval_num_prompts
    return prompts if limit is None else pick_prompts(prompts, limit)


def _prepare(
    parent: ResolvedDrafter,
    verifier: Verifier,
    config: TrainConfig,
    corpus: Corpus,
    settings: Settings,
    *,
    vocab: DraftVocab | None,
) -> PreparedParent:
    key = digest_json([str(parent.path), config.model_dump(mode="json"), corpus.digest])
    folder = settings.checkpoints_dir / f".parent-{key[:16]}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    frequencies = corpus.tokens_dir / "token_freq.pt"
    ids = vocab.target_ids if vocab else None
    return prepare_parent(parent.path, verifier, config, folder, frequencies, vocab_ids=ids)


def _inherited_config(
    prepared: PreparedParent, config: TrainConfig, shape: DraftShape
) -> dict[str, Any]:
    """The prepared drafter's own config, with what this training adds to it."""
    document: dict[str, Any] = json.loads((prepared.path / "config.json").read_text())
    document["eagle_aux_hidden_state_layer_ids"] = list(shape.aux_layer_ids)
    document["transformer_layer_config"]["head_dim"] = shape.head_dim
    for proposal in document["speculators_config"]["proposal_methods"]:
        proposal["speculative_tokens"] = config.ttt_steps
    return document


def _fingerprint(
    config: TrainConfig,
    verifier: str,
    corpus: Corpus,
    document: dict[str, Any],
    prepared: PreparedParent | None,
    *,
    vocab: DraftVocab | None,
) -> str:
    versions = package_versions()
    kept = ("speculators", "torch", "transformers")
    # Trainings from before there was noise are equal to those without; so with gangs.
    silent = (set() if config.noise else {"noise"}) | (_OF_GANGS if config.nproc == 1 else set())
    return digest_json(
        {
            "config": config.model_dump(mode="json", exclude=_NO_ARITHMETIC | silent),
            "verifier": verifier,
            "corpus": corpus.digest,
            **({"draft vocabulary": vocab.digest} if vocab else {}),
            "parent": prepared.digest if prepared else None,
            "shape": {**document, "speculators_config": None},
            "versions": {name: versions.get(name) for name in kept},
            "python": sys.version_info[:2],
        }
    )
