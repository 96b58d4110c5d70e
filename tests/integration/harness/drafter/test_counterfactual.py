"""`verify --replay` on a drafter that speculators trained: clean as it is, every lie found.

The verifier is random and answers in short cycles; the drafter was trained on such answers with a
window of 8 tokens and an embedding of its own. What silu for gelu costs so small a drafter is no
more than chance: that is tested in tests/unit/eval/test_counterfactual.py.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fakes.taught_drafter import change, teach
from fakes.tiny_corpus import (
    NUM_ROWS,
    prompt_words,
    write_running_verifier,
    write_tiny_corpus,
    write_words,
)

from harness.cli import run
from harness.config.train import TrainConfig
from harness.settings import load_settings

pytestmark = pytest.mark.timeout(600)

WINDOW = 8


class World(NamedTuple):
    root: Path
    verifier: Path
    drafter: Path
    prompts: Path


def build_world(root: Path, *, norm_before_residual: bool) -> World:
    verifier = write_running_verifier(root / "verifier")
    write_words(verifier)
    config = TrainConfig(
        verifier=str(verifier),
        corpus=str(write_tiny_corpus(root / "corpus", verifier)),
        head_dim=16,
        draft_vocab_size=64,
        total_seq_len=128,
        lr=3e-3 if norm_before_residual else 1e-2,
        norm_before_residual=norm_before_residual,
        sliding_window=WINDOW,
        device="cpu",
        smoke="never",
    )
    settings = load_settings(root).model_copy(update={"cache_dir": root / "cache"})
    taught = teach(root / "taught", config, settings, num_epochs=40)
    prompts = root / "prompts.jsonl"
    lines = [
        {"id": str(n), "category": "ab"[n % 2], "prompt": prompt_words(n)} for n in range(NUM_ROWS)
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    return World(root, verifier, taught.path, prompts)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build_world(tmp_path_factory.mktemp("world"), norm_before_residual=True)


@pytest.fixture(scope="module")
def bare_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Its residual is not normed: what the next step is fed keeps its size, norm_output shows."""
    return build_world(tmp_path_factory.mktemp("bare"), norm_before_residual=False)


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(world: World, drafter: Path, *more: str) -> tuple[int, list[dict[str, str]]]:
        monkeypatch.setenv("HARNESS_ROOT", str(world.root))
        capsys.readouterr()
        code = run(["verify", "--drafter", str(drafter), "--verifier", str(world.verifier),
                    "--replay", "--prompts", str(world.prompts), "--max-tokens", "20",
                    "--json", *more])  # fmt: skip
        return code, json.loads(capsys.readouterr().out)["findings"]

    return call


def test_the_drafter_as_it_was_trained_is_clean(verify: Any, world: World) -> None:
    code, findings = verify(world, world.drafter)
    assert code == 0
    assert {f["severity"] for f in findings if f["rule"] == "replay"} == {"info"}
    (measured,) = [f for f in findings if f["rule"] == "replay"]
    assert measured["found"].startswith("0 of them; as configured ")
    assert [f for f in findings if f["severity"] == "error"] == []
    assert {f["subject"] for f in findings if f["rule"] == "S20"} == {"sliding_window, layer_types"}


@pytest.mark.parametrize(
    ("rule", "corrupt", "fix"),
    [
        ("S10", {"norm_before_residual": False}, "set norm_before_residual to true in config.json"),
        (
            "S14",
            {"eagle_aux_hidden_state_layer_ids": [2, 4, 6]},
            "set eagle_aux_hidden_state_layer_ids to [1, 3, 5] in config.json",
        ),
        (
            "S14",
            {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]},
            "set eagle_aux_hidden_state_layer_ids to [1, 3, 5] in config.json",
        ),
        (
            "S18",
            {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
            "set rope_parameters to {'rope_theta': 10000.0, 'rope_type': 'default'} in "
            "config.json: transformer_layer_config",
        ),
        (
            "S20",
            {"layer_types": ["full_attention"]},
            "set in config.json: transformer_layer_config: sliding_window 8 with layer_types "
            "['sliding_attention']",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_lie_in_the_config_is_found_by_its_rule_with_its_fix(  # noqa: PLR0917 - a table
    verify: Any, world: World, tmp_path: Path, rule: str, corrupt: dict[str, Any], fix: str
) -> None:
    code, findings = verify(world, change(world.drafter, tmp_path / "drafter", corrupt))
    errors = [(f["rule"], f["fix"]) for f in findings if f["severity"] == "error"]
    assert errors == [(rule, fix)]
    assert code == 4


def test_a_wrong_norm_output_is_found_where_it_matters(
    verify: Any, bare_world: World, tmp_path: Path
) -> None:
    code, findings = verify(bare_world, bare_world.drafter)
    assert (code, [f for f in findings if f["severity"] == "error"]) == (0, [])
    lie = change(bare_world.drafter, tmp_path / "drafter", {"norm_output": False})
    code, findings = verify(bare_world, lie)
    errors = [(f["rule"], f["fix"]) for f in findings if f["severity"] == "error"]
    assert (code, errors) == (4, [("S12", "set norm_output to true in config.json")])


def test_an_embedding_that_was_not_saved_is_found_with_the_parent(
    verify: Any, world: World, tmp_path: Path
) -> None:
    child = change(world.drafter, tmp_path / "drafter", {}, without=("embed_tokens.weight",))
    code, findings = verify(world, child, "--parent", str(world.drafter))
    errors = [(f["rule"], f["subject"]) for f in findings if f["severity"] == "error"]
    assert (code, errors) == (4, [("S9", "embed_tokens.weight")])


def test_too_short_answers_do_not_judge_the_window(
    verify: Any, world: World, tmp_path: Path
) -> None:
    lost = change(world.drafter, tmp_path / "drafter", {"sliding_window": 64})
    _, findings = verify(world, lost)
    (info, *_) = [f for f in findings if f["rule"] == "S20"]
    assert info["severity"] == "info"
    assert "longer than 64 tokens" in info["found"]
