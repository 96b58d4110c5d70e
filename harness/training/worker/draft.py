"""The drafter exactly as its config.json says, filled from verifier and parent, and proven so."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

from harness.training.messages import TrainJob
from harness.training.worker.reporter import RefusedError

_FROM_VERIFIER = frozenset(
    ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight")
)
"""Tensors that speculators takes from the verifier when a checkpoint lacks them."""


class Draft(NamedTuple):
    """A model ready to train, and what is known of it before the first step."""

    model: Eagle3DraftModel
    draft_vocab_coverage: float
    num_parent_tensors: int


def build_draft(job: TrainJob, attention: str) -> Draft:
    """The drafter exactly as its config.json says, with the parent's weights if there is one."""
    config = Eagle3SpeculatorConfig.from_pretrained(job.draft_config_dir)
    config.transformer_layer_config._attn_implementation = attention  # noqa: SLF001 - theirs
    published = config.speculators_config.verifier.name_or_path
    config.speculators_config.verifier.name_or_path = str(job.verifier_path)
    model = Eagle3DraftModel(config=config)
    parent = load_file(job.parent_weights) if job.parent_weights else {}
    frequencies = torch.load(job.token_freq_path, weights_only=True)
    if model.use_draft_vocab:
        d2t, t2d = parent.get("d2t"), parent.get("t2d")
        if (d2t is None or t2d is None) and job.draft_vocab_dir is not None:
            d2t, t2d = _load_tables(job.draft_vocab_dir)
        elif d2t is None or t2d is None:
            d2t, t2d = build_vocab_mappings_from_distribution(
                frequencies, job.draft_vocab_size, model.verifier_vocab_size
            )
        model.load_vocab_mappings(t2d, d2t)
    model.load_verifier_weights()
    allowed = (*job.fresh_tensors, *job.shared_tensors)
    num_proven = load_parent(model, parent, frozenset(allowed)) if parent else 0
    model.lm_head.weight.requires_grad_(job.config.train_lm_head)
    unset = [name for name, value in model.named_parameters() if value.isnan().any()]
    if unset:
        raise RefusedError(f"tensors that nothing filled: {', '.join(unset)}")
    config.speculators_config.verifier.name_or_path = published
    return Draft(model, draft_coverage(model, frequencies), num_proven)


def _load_tables(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """d2t int64 [R] and t2d bool [V] as `harness data vocab` wrote them."""
    names = ("d2t.npy", "t2d.npy")
    d2t, t2d = (torch.from_numpy(np.load(folder / name, allow_pickle=False)) for name in names)
    return d2t, t2d


def load_parent(
    model: Eagle3DraftModel, parent: dict[str, torch.Tensor], may_lack: frozenset[str]
) -> int:
    """Loads a parent strictly and proves it; returns the number of tensors that equal its own."""
    own = model.state_dict()
    problems = [f"missing {n}" for n in own if n not in parent.keys() | _FROM_VERIFIER | may_lack]
    problems += [f"unexpected {name}" for name in parent if name not in own]
    problems += [
        f"{name}: expected {tuple(own[name].shape)}, found {tuple(value.shape)}"
        for name, value in parent.items()
        if name in own and own[name].shape != value.shape
    ]
    if problems:
        raise RefusedError("the parent's tensors do not fit the drafter: " + "; ".join(problems))
    model.load_state_dict(parent, strict=False)
    loaded = model.state_dict()
    unequal = [n for n, v in parent.items() if not torch.equal(loaded[n], v.to(loaded[n].dtype))]
    if unequal:
        raise RefusedError(f"tensors that differ from the parent's: {', '.join(unequal)}")
    return len(parent)


def draft_coverage(model: Eagle3DraftModel, frequencies: dict[int, int]) -> float:
    """Fraction of the corpus's answer tokens that the drafter can propose."""
    if model.t2d is None:
        return 1.0
    is_drafted = model.t2d.tolist()
    covered = sum(count for token, count in frequencies.items() if is_drafted[token])
    return covered / max(1, sum(frequencies.values()))
