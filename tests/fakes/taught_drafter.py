"""A drafter taught by speculators in this process, and what its own validation says of it.

Real model, real loaders, real checkpoint format; only the optimiser loop is short. The embedding is
not the verifier's, as it is with trainers that move it (speculators 0.9.0 does not).
"""

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fakes.tiny_corpus import AUX_LAYER_IDS
from safetensors.torch import load_file, save_file
from speculators.losses import resolve_loss_config

from harness.config.train import TrainConfig
from harness.corpus.hidden_states import Corpus
from harness.drafter.verifier import Verifier
from harness.settings import Settings
from harness.training.messages import TrainJob
from harness.training.shape import build_config, resolve_shape
from harness.training.verifier_view import write_view
from harness.training.worker.assembly import build_loaders, speculators_config
from harness.training.worker.draft import build_draft
from harness.training.worker.machine import find_machine

_LOSS = resolve_loss_config("kl_div", "eager")


class Taught(NamedTuple):
    """A drafter on disk with its trainer's figures."""

    path: Path
    full_acc: list[float]
    """Of the weights in memory, by step."""


def teach(folder: Path, config: TrainConfig, settings: Settings, *, num_epochs: int) -> Taught:
    """Trains, validates as speculators does, and saves in float32."""
    verifier = Verifier.load(config.verifier, settings)
    corpus = Corpus.load(Path(config.corpus), deep=False)
    shape = resolve_shape(config, verifier, AUX_LAYER_IDS)
    document = build_config(shape, verifier, config.ttt_steps)
    draft_dir = folder / "draft"
    draft_dir.mkdir(parents=True)
    (draft_dir / "config.json").write_text(json.dumps(document))
    job = TrainJob(
        config=config,
        draft_config_dir=draft_dir,
        draft_vocab_size=shape.draft_vocab_size,
        aux_layer_ids=shape.aux_layer_ids,
        verifier_path=write_view(verifier, folder / "view"),
        tokens_dir=corpus.tokens_dir,
        hidden_states_dir=corpus.hidden_states_dir,
        token_freq_path=corpus.tokens_dir / "token_freq.pt",
        save_dir=folder / "epochs",
    )
    torch.manual_seed(config.seed)
    machine = find_machine(config)
    model = build_draft(job, machine.attention).model.float()
    embed = model.embed_tokens.weight
    embed.data += embed.std() * torch.randn_like(embed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaders = build_loaders(speculators_config(job, machine), job, model)
        _train(model, loaders[0], config, num_epochs)
        figures = _validate(model, loaders[1], config.ttt_steps)
    path = folder / "drafter"
    model.save_pretrained(path)
    for script in path.glob("*.py"):
        script.unlink()
    return Taught(path, figures)


def change(
    source: Path,
    target: Path,
    config: dict[str, Any],
    without: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A copy with other values in config.json, those of the decoder included, or less tensors."""
    target.mkdir(parents=True)
    document = json.loads((source / "config.json").read_text())
    decoder = document["transformer_layer_config"]
    for key, value in config.items():
        (decoder if key in decoder else document)[key] = value
    (target / "config.json").write_text(json.dumps(document))
    kept = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(source / "model.safetensors").items()
        if name not in without
    }
    save_file(kept, target / "model.safetensors", {"format": "pt"})
    return target


def _train(model: Any, loader: Any, config: TrainConfig, num_epochs: int) -> None:
    model.train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), config.lr)
    for epoch in range(num_epochs):
        loader.batch_sampler.set_epoch(epoch)
        for batch in loader:
            _, loss, _ = model(**batch, ttt_steps=config.ttt_steps, loss_config=_LOSS)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _validate(model: Any, loader: Any, num_steps: int) -> list[float]:
    model.eval()
    sums = torch.zeros(num_steps, 2)
    with torch.no_grad():
        for batch in loader:
            _, _, metrics = model(**batch, ttt_steps=num_steps, loss_config=_LOSS)
            for step in range(num_steps):
                sums[step, 0] += metrics[f"full_acc_{step}_sum"]
                sums[step, 1] += metrics[f"full_acc_{step}_total"]
    return [float(right / total) for right, total in sums]
