"""Proof 2: a saved drafter against its trainer's figures, healthy and with what no file shows.

The trainer's side is speculators' own validation forward over its own loaders, on real weights.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from fakes.taught_drafter import Taught, change, teach
from fakes.tiny_corpus import (
    AUX_LAYER_IDS,
    prompt_words,
    write_running_verifier,
    write_tiny_corpus,
    write_words,
)

from eval.agreement import Agreement, check_agreement
from eval.draft import DraftModel, load_tensors
from eval.sequences import Row
from eval.states import check_states, recapture
from eval.verifier import VerifierParts
from harness.corpus.hidden_states import Corpus
from harness.corpus.rows import read_rows
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError
from harness.settings import Settings
from harness.tracking import names
from harness.tracking.records import RunStatus
from harness.tracking.resolve import best_checkpoint
from harness.tracking.store import Store
from harness.tracking.waterfall import read_gap
from harness.training.run import run_training

from .conftest import MakeConfig

pytestmark = pytest.mark.timeout(300)

NUM_DISTINCT = 12
SHAPE = {"sliding_window": 8, "norm_before_residual": False, "lr": 6e-3, "val_ratio": 0.5}
"""Half of the rows validate; the residual is not normed, else norm_output would matter little: the
next step norms what it is fed."""


class Trial:
    """A taught drafter with all that its figures are compared over."""

    def __init__(self, folder: Path, settings: Settings, make_config: MakeConfig) -> None:
        self.folder = folder
        self.verifier_path = write_running_verifier(folder / "verifier")
        write_words(self.verifier_path)
        corpus = write_tiny_corpus(folder / "corpus", self.verifier_path, num_distinct=NUM_DISTINCT)
        self.config = make_config(verifier=str(self.verifier_path), corpus=str(corpus), **SHAPE)
        self.settings = settings
        self.verifier = Verifier.load(str(self.verifier_path), settings)
        self.facts = verifier_facts(self.verifier, "ab" * 32)
        self.parts = VerifierParts.load(self.facts, torch.float32)
        loaded = Corpus.load(corpus, deep=False)
        self.rows = read_rows(loaded, loaded.num_rows // 2)
        self.taught = self.teach("taught", 50)

    def teach(self, name: str, num_epochs: int, **changes: object) -> Taught:
        config = self.config.model_copy(update=changes)
        return teach(self.folder / name, config, self.settings, num_epochs=num_epochs)

    def agree(
        self, path: Path, rows: Sequence[Row] | None = None, taught: Taught | None = None
    ) -> Agreement:
        facts = draft_facts(Drafter.load(path), self.verifier)
        model = DraftModel.beside(facts, load_tensors(path), self.parts)
        trained = (taught or self.taught).full_acc
        return check_agreement(model, self.parts, rows or self.rows, trained)


@pytest.fixture(scope="module")
def trial(
    tmp_path_factory: pytest.TempPathFactory,
    settings: Settings,
    make_config: MakeConfig,
) -> Trial:
    return Trial(tmp_path_factory.mktemp("agreement"), settings, make_config)


def test_a_float32_file_gives_the_trainers_very_counts(trial: Trial) -> None:
    found = trial.agree(trial.taught.path)
    assert found.agrees
    assert found.steps[0].total == 240
    assert found.steps[0].trained > 0.5
    for step in found.steps:
        assert step.replayed == pytest.approx(step.trained, abs=1e-6)


def test_two_layers_fc_norm_and_a_whole_vocabulary_agree_too(trial: Trial) -> None:
    changes = {"num_layers": 2, "fc_norm": True, "draft_vocab_size": 96, "sliding_window": None}
    taught = trial.teach("two", 15, **changes)
    found = trial.agree(taught.path, taught=taught)
    for step in found.steps:
        assert step.replayed == pytest.approx(step.trained, abs=1e-6)


def test_a_bfloat16_file_of_float32_weights_agrees(trial: Trial, tmp_path: Path) -> None:
    half = change(trial.taught.path, tmp_path / "half", {}, dtype=torch.bfloat16)
    assert trial.agree(half).agrees


@pytest.mark.parametrize(
    ("what", "config", "without"),
    [
        ("S9: trained embeddings not saved", {}, ("embed_tokens.weight",)),
        ("S10: norm_before_residual", {"norm_before_residual": True}, ()),
        ("S12: norm_output", {"norm_output": False}, ()),
        (
            "S18: rope",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
            (),
        ),
        ("S20: a window that is not in the config", {"layer_types": ["full_attention"]}, ()),
        ("S24: activation", {"hidden_act": "relu"}, ()),
        ("S24: epsilon", {"rms_norm_eps": 1.0}, ()),
    ],
)
def test_what_a_file_cannot_show_is_seen(
    trial: Trial,
    tmp_path: Path,
    what: str,
    config: dict[str, object],
    without: tuple[str, ...],
) -> None:
    found = trial.agree(change(trial.taught.path, tmp_path / "changed", config, without))
    assert not found.agrees, what


@pytest.mark.parametrize("ids", [(0, 2, 4), (2, 4, 5)])
def test_states_of_the_layers_beside_are_seen(trial: Trial, ids: tuple[int, ...]) -> None:
    """S14: another convention of layer ids."""
    assert not trial.agree(trial.taught.path, recapture(trial.rows, trial.facts, ids)).agrees


def test_states_of_another_revision_are_seen(trial: Trial, tmp_path: Path) -> None:
    """S21; the same verifier's states, computed again, agree."""
    again = recapture(trial.rows, trial.facts, AUX_LAYER_IDS)
    assert trial.agree(trial.taught.path, again).agrees
    path = write_running_verifier(tmp_path / "revised", seed=1)
    revised = trial.facts.model_copy(update={"path": path})
    assert not trial.agree(trial.taught.path, recapture(trial.rows, revised, AUX_LAYER_IDS)).agrees


def test_kept_states_are_told_from_those_of_another_verifier_or_layer(
    trial: Trial, tmp_path: Path
) -> None:
    same = check_states(trial.rows, trial.facts, AUX_LAYER_IDS, dtype="float32")
    assert same.is_same
    assert same.shift == 0
    assert max(layer.difference for layer in same.layers) < 1e-4
    shifted = check_states(trial.rows, trial.facts, (2, 4), dtype="float32")
    assert not shifted.is_same
    rows = recapture(trial.rows, trial.facts, (1, 3))
    shifted = check_states(rows, trial.facts, (2, 4), dtype="float32")
    assert not shifted.is_same
    assert shifted.shift == -1
    path = write_running_verifier(tmp_path / "revised", seed=1)
    revised = trial.facts.model_copy(update={"path": path})
    other = check_states(trial.rows, revised, AUX_LAYER_IDS, dtype="float32")
    assert not other.is_same
    assert other.shift is None


def write_prompts(path: Path, first: int, count: int) -> Path:
    prompts = [
        {"id": f"p{number}", "category": "words", "turns": [prompt_words(first + number)]}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def test_a_training_ranks_by_the_walk_and_tells_the_whole_gap(
    trial: Trial, make_config: MakeConfig, settings: Settings, store: Store, tmp_path: Path
) -> None:
    config = make_config(
        verifier=str(trial.verifier_path),
        corpus=trial.config.corpus,
        epochs=4,
        eval_prompts=str(write_prompts(tmp_path / "eval.jsonl", first=1000, count=6)),
        eval_num_prompts=4,
        eval_max_tokens=12,
        **SHAPE,
    )
    run = run_training(config, settings, store, lambda *_: None)
    walks = [c.metrics[names.METRIC_VAL_ACCEPTANCE_LENGTH] for c in run.checkpoints]
    assert all(1 <= walk <= 4 for walk in walks)
    assert run.best.metrics[names.METRIC_VAL_ACCEPTANCE_LENGTH] == max(walks)
    assert run.best == best_checkpoint(run.checkpoints)
    gap = read_gap(store, run.run_id)
    assert gap is not None
    assert len(gap.checkpoints) == 4
    best = gap.find(run.best.model_id)
    assert best is not None
    assert best.domain_walk is not None
    assert best.domain_walk.value == max(walks)
    assert {step.name for step in best.steps} == {"definition", "walk in domain", "domain", "walk"}
    assert "trainer" in (store.read_text(run.run_id, "gap.html") or "")
    for checkpoint in run.checkpoints:
        for step in range(config.ttt_steps):
            trained = checkpoint.metrics[f"val/full_acc_{step}"]
            replayed = checkpoint.metrics[names.METRIC_VAL_REPLAYED_ACC.format(step=step)]
            assert replayed == pytest.approx(trained, abs=0.02)


def test_a_checkpoint_that_is_not_what_was_trained_fails_the_run(
    make_config: MakeConfig, settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Drafter.load

    def load(path: Path) -> Drafter:
        """As a reader that takes the norm switch from somewhere else."""
        return real(path).model_copy(update={"rms_norm_eps": 3.0})

    monkeypatch.setattr("harness.training.validation.Drafter.load", staticmethod(load))
    config = make_config(seed=77, epochs=20, val_ratio=0.5, lr=6e-3)
    with pytest.raises(CheckError, match="train agreement") as caught:
        run_training(config, settings, store, lambda *_: None)
    assert "rms_norm_eps" in (caught.value.hint or "")
    run = store.find_runs(kind=names.KIND_TRAIN, status=RunStatus.FAILED, limit=1)[0]
    assert run.tags[names.TAG_FAILURE].startswith("train agreement: ")


def test_prompts_of_the_corpus_are_no_evaluation(
    trial: Trial, make_config: MakeConfig, settings: Settings, store: Store, tmp_path: Path
) -> None:
    config = make_config(
        verifier=str(trial.verifier_path),
        corpus=trial.config.corpus,
        eval_prompts=str(write_prompts(tmp_path / "eval.jsonl", first=0, count=2)),
        eval_max_tokens=4,
        seed=78,
    )
    with pytest.raises(ConfigError, match="2 of the prompts are in the corpus"):
        run_training(config, settings, store, lambda *_: None)
