"""Verifiers of every config shape, read as data."""

import json
from pathlib import Path

import pytest
from fakes.drafters import NUM_LAYERS, VERIFIER_KINDS, VOCAB, build_verifier, settings_for

from harness.digests import digest_files
from harness.drafter.verifier import Verifier, verifier_digest
from harness.errors import CheckError, ConfigError, PrerequisiteError

EXPECTED = {
    # kind: model_type, head_dim, embedding, head, tied
    "llama": ("llama", None, "model.embed_tokens.weight", "lm_head.weight", False),
    "qwen3": ("qwen3", 32, "model.embed_tokens.weight", "lm_head.weight", False),
    "kimi": ("deepseek_v3", None, "language_model.model.embed_tokens.weight",
             "language_model.lm_head.weight", False),
    "tied_vlm": ("qwen3_vl_text", None, "model.language_model.embed_tokens.weight",
                 "model.language_model.embed_tokens.weight", True),
}  # fmt: skip


@pytest.mark.parametrize("kind", VERIFIER_KINDS)
def test_facts_come_from_the_text_model(tmp_path: Path, kind: str) -> None:
    verifier = build_verifier(tmp_path / kind, kind)
    found = (
        verifier.model_type, verifier.head_dim, verifier.embed_key, verifier.lm_head_key,
        verifier.is_tied,
    )  # fmt: skip
    assert found == EXPECTED[kind]
    assert verifier.vocab_size == VOCAB
    assert verifier.num_layers == NUM_LAYERS
    assert verifier.default_aux_layer_ids == (2, 15, 27)
    assert verifier.rope_parameters == {"rope_theta": 50000.0, "rope_type": "default"}
    assert verifier.embed_key
    assert verifier.header(verifier.embed_key).shape == (VOCAB, verifier.hidden_size)


def test_wrappers_within_wrappers_are_no_crash(tmp_path: Path) -> None:
    build_verifier(tmp_path / "v")
    path = tmp_path / "v" / "config.json"
    text = path.read_text()
    for _ in range(600):
        text = '{"text_config": ' + text + "}"
    path.write_text(text)
    assert Verifier.load(str(tmp_path / "v"), settings_for(tmp_path)).num_layers == NUM_LAYERS


def test_a_relative_path_starts_at_the_project(tmp_path: Path) -> None:
    build_verifier(tmp_path / "models" / "v")
    assert Verifier.load("models/v", settings_for(tmp_path)).path == tmp_path / "models" / "v"


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    build_verifier(tmp_path / "v")
    (tmp_path / "v" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="expected a tokenizer"):
        Verifier.load(str(tmp_path / "v"), settings_for(tmp_path))


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        Verifier.load(str(tmp_path), settings_for(tmp_path))


@pytest.mark.parametrize("reference", ["nowhere", "/nowhere/at/all", "hf:not a hub id"])
def test_a_reference_to_nothing_is_a_usage_error(tmp_path: Path, reference: str) -> None:
    with pytest.raises(ConfigError):
        Verifier.load(reference, settings_for(tmp_path))


def test_a_package_that_is_not_installed_is_a_prerequisite(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError):
        Verifier.load("package:no-such-distribution-here", settings_for(tmp_path))


def test_the_digest_is_cached_until_a_file_changes(tmp_path: Path) -> None:
    verifier = build_verifier(tmp_path / "v")
    cache = tmp_path / "cache"
    first = verifier_digest(verifier, cache)
    (entry,) = (cache / "verifier-digests").iterdir()
    entry.write_text(json.dumps({"root": "remembered"}))
    assert verifier_digest(verifier, cache) == "remembered"
    (tmp_path / "v" / "tokenizer.json").write_text("{ }")
    assert verifier_digest(verifier, cache) not in {first, "remembered"}


def test_a_manifest_names_the_digest_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    build_verifier(tmp_path / "v")
    files = digest_files(tmp_path / "v", ["config.json", "tokenizer.json"])
    manifest = json.dumps({"files": files.model_dump()})
    (tmp_path / "v" / "manifest.json").write_text(manifest)
    verifier = Verifier.load(str(tmp_path / "v"), settings_for(tmp_path))
    assert verifier.digest == verifier_digest(verifier, tmp_path / "cache") == files.root
    (tmp_path / "v" / "tokenizer.json").write_text('{"changed": true}')
    with pytest.raises(CheckError, match="changed after it was written"):
        verifier_digest(verifier, tmp_path / "cache")
    (tmp_path / "v" / "tokenizer.json").unlink()
    with pytest.raises(CheckError, match=r"expected tokenizer\.json"):
        verifier_digest(verifier, tmp_path / "cache")
