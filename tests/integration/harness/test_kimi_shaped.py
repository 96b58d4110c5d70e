"""A Kimi-K2.5-shaped verifier all the way: prompts, answers, rows, states, a finetune, exports.

Nothing here knows the model beyond its folder: nested config, `language_model.` names, an untied
head, MLA and experts in many shards, and a parent in the flat form with `midlayer.` names.
"""

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fakes.drafters import build_drafter
from fakes.kimi_miniature import AUX_LAYER_IDS, HEAD_DIM, prompt_line, write_kimi_verifier
from safetensors.torch import load_file
from transformers import AutoModel

from eval.spec import ServerSpec
from harness.config.train import TrainConfig
from harness.corpus.extraction import extract
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.hidden_states import Corpus
from harness.corpus.regeneration import RegenerateConfig, regenerate
from harness.corpus.rowfiles import read_token_ids
from harness.corpus.tokens import PrepareConfig, prepare
from harness.drafter.checks import check_drafter
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.settings import Settings, load_settings
from harness.tracking.export import export_drafter
from harness.tracking.store import Store, open_store
from harness.training.run import TrainRun, run_training

pytestmark = pytest.mark.timeout(300)

SERVER = Path(__file__).parents[2] / "fakes" / "serve_verifier.py"
NUM_PROMPTS, MAX_TOKENS = 12, 6


def quiet(text: str, done: int, total: int) -> None:
    """Nobody watches."""


class Kimi(NamedTuple):
    """The verifier and its corpus."""

    root: Path
    settings: Settings
    store: Store
    verifier: Verifier
    corpus: Corpus


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Kimi:
    root = tmp_path_factory.mktemp("kimi")
    found = load_settings(root)
    uri = f"sqlite:///{root / 'mlruns' / 'mlflow.db'}"
    settings = found.model_copy(update={"tracking_uri": uri, "cache_dir": root / "cache"})
    folder = write_kimi_verifier(root / "verifier")
    verifier = Verifier.load(str(folder), settings)
    for name, numbers in (("train", range(NUM_PROMPTS)), ("eval", range(100, 103))):
        lines = [prompt_line(number) + "\n" for number in numbers]
        (root / f"{name}.jsonl").write_text("".join(lines))
    spec = ServerSpec(
        verifier=folder, command=(sys.executable, str(SERVER)), dtype="float32",
        env={"PYTHONPATH": os.pathsep.join(sys.path)}, start_timeout_s=120, stop_timeout_s=3,
    )  # fmt: skip
    config = RegenerateConfig(max_tokens=MAX_TOKENS, concurrency=2)
    regenerate(
        root / "train.jsonl", verifier, root / "conversations", config,
        server=spec, exclude=[str(root / "eval.jsonl")], progress=quiet,
    )  # fmt: skip
    prepare(root / "conversations", verifier, root / "rows", PrepareConfig(), progress=quiet)
    config_x = ExtractConfig(aux_layer_ids=AUX_LAYER_IDS)
    extract(root / "rows", verifier, root / "corpus", config_x, progress=quiet)
    return Kimi(root, settings, open_store(settings), verifier, Corpus.load(root / "corpus"))


@pytest.fixture(scope="module")
def parent(kimi: Kimi) -> Path:
    """As AQ-MedAI/Kimi-K2-Instruct-eagle3 is: flat, one `midlayer`, the embedding left out."""
    path = build_drafter(kimi.root / "parent", kimi.verifier, "flat", has_embed=False)
    assert any(name.startswith("midlayer.") for name in load_file(path / "model.safetensors"))
    return path


@pytest.fixture(scope="module")
def trained(kimi: Kimi, parent: Path) -> TrainRun:
    config = TrainConfig.model_validate({
        "verifier": str(kimi.verifier.path), "corpus": str(kimi.corpus.dir),
        "finetune_from": str(parent), "ttt_steps": 3, "lr": 3e-5, "noise": 0.05,
        "scheduler": "cosine",
        "epochs": 1, "total_seq_len": 128, "device": "cpu", "smoke": "never",
        "eval_prompts": str(kimi.root / "eval.jsonl"), "eval_max_tokens": 4,
    })  # fmt: skip
    return run_training(config, kimi.settings, kimi.store, quiet)


def test_the_corpus_holds_what_the_whole_model_computes(kimi: Kimi) -> None:
    assert kimi.corpus.num_rows == NUM_PROMPTS
    model = AutoModel.from_pretrained(kimi.verifier.path, dtype=torch.float32).eval()
    ids = read_token_ids(kimi.corpus.tokens_dir)[3]
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    kept = load_file(kimi.corpus.hidden_states_dir / "hs_3.safetensors")["hidden_states"]
    assert kept.shape == (len(ids), 4, kimi.verifier.hidden_size)
    for index, layer in enumerate(AUX_LAYER_IDS):
        torch.testing.assert_close(kept[:, index], found[layer][0], atol=1e-3, rtol=1e-2)
        assert not torch.allclose(kept[:, index], found[layer + 1][0], atol=0.05)


def test_answers_are_rows_of_the_template_with_a_mask_on_the_answer(kimi: Kimi) -> None:
    line = (kimi.root / "conversations" / "conversations.jsonl").read_text().splitlines()[0]
    turn = json.loads(line)["turns"][0]
    assert len(turn["token_ids"]) <= MAX_TOKENS
    assert kimi.corpus.num_loss_tokens <= NUM_PROMPTS * MAX_TOKENS
    assert [*turn["prompt_token_ids"], *turn["token_ids"]] in read_token_ids(kimi.corpus.tokens_dir)


def test_the_child_has_the_parents_head_dim_and_passes_every_check(
    kimi: Kimi, parent: Path, trained: TrainRun
) -> None:
    child = Drafter.load(trained.best.path)
    assert child.head_dim_configured == child.head_dim_tensors == HEAD_DIM
    assert kimi.verifier.hidden_size // kimi.verifier.num_attention_heads != HEAD_DIM
    report = check_drafter(trained.best.path, kimi.verifier, parent, deep=True)
    assert report.ok, report
    params = kimi.store.get_run(trained.run_id).params
    assert params["head_dim_source"] == "parent tensors"


def test_it_starts_as_the_parent_and_moves(parent: Path, trained: TrainRun) -> None:
    before = load_file(parent / "model.safetensors")
    after = load_file(trained.best.path / "model.safetensors")
    for name in ("self_attn.q_proj.weight", "mlp.down_proj.weight"):
        old, new = before[f"midlayer.{name}"].float(), after[f"layers.0.{name}"].float()
        assert not torch.equal(old, new)
        torch.testing.assert_close(old, new, atol=3e-3, rtol=0.02)
    assert torch.equal(before["d2t"], after["d2t"])


@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_both_forms_are_exported_and_sound(kimi: Kimi, trained: TrainRun, form: str) -> None:
    out = kimi.root / f"served-{form}"
    done = export_drafter(
        f"run:{trained.run_id}", out, kimi.settings, kimi.store, to=form, load=None, progress=quiet
    )
    assert done.format == form
    report = check_drafter(out, kimi.verifier, deep=True)
    assert report.ok, report
    names = {"flat": "midlayer.", "speculators": "layers.0."}
    tensors = load_file(out / "model.safetensors")
    trained_as = load_file(trained.best.path / "model.safetensors")
    key = "self_attn.o_proj.weight"
    assert torch.equal(tensors[names[form] + key], trained_as[f"layers.0.{key}"])
    assert Drafter.load(out).head_dim_configured == HEAD_DIM
