"""A parent is taken whole or refused: names, vocabulary, sizes, switches (S7, S25, S26)."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.drafters import (
    DRAFT_VOCAB,
    VOCAB,
    build_drafter,
    build_verifier,
    decoder,
    edit_config,
    edit_tensors,
)

from harness.config.train import TrainConfig
from harness.drafter.checks import check_drafter
from harness.drafter.drafter import Drafter, drafter_digest
from harness.drafter.finetune import PreparedParent, prepare_parent
from harness.drafter.tensors import read_folder_headers
from harness.drafter.values import read_tensor
from harness.drafter.verifier import Verifier
from harness.errors import CheckError, ConfigError

UP = "layers.0.mlp.up_proj.weight"


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return build_verifier(tmp_path / "v", "kimi")


@pytest.fixture
def frequencies(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    ids = rng.choice(VOCAB, 200, replace=False)
    torch.save({int(i): int(n) for n, i in enumerate(ids, start=1)}, tmp_path / "token_freq.pt")
    return tmp_path / "token_freq.pt"


def config(**values: Any) -> TrainConfig:
    return TrainConfig(verifier="v", corpus="c", finetune_from="parent", **values)


def actions(prepared: PreparedParent) -> dict[str, str]:
    return {record.name: record.action for record in prepared.tensors}


def stored(path: Path) -> dict[str, np.ndarray]:
    return {
        key.replace("midlayer.", "layers.0."): read_tensor(path, header)
        for key, header in read_folder_headers(path).items()
    }


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_keeping_the_vocabulary_takes_every_tensor_bit_by_bit(
    tmp_path: Path, verifier: Verifier, form: str
) -> None:
    path = build_drafter(tmp_path / "p", verifier, form, has_t2d=form == "nested")
    done = prepare_parent(path, verifier, config(), tmp_path / "out")
    before, after = stored(path), stored(done.path)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    word = "loaded" if form == "nested" else "remapped"
    assert actions(done)[UP] == word
    assert actions(done)["fc.weight"] == "loaded"
    assert actions(done)["embed_tokens.weight"] == "shared"
    assert actions(done)["t2d"] == ("loaded" if form == "nested" else "rebuilt")
    assert done.key_map == (() if form == "nested" else ("midlayer. -> layers.0.",))
    assert done.digest == drafter_digest(path).root
    assert set(done.parent.tensor_digests) == set(Drafter.load(path).tensors)
    assert done.head_dim == 16
    assert check_drafter(done.path, verifier, path, deep=True).findings == ()


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_rebuilding_the_vocabulary_leaves_no_row_misaligned(
    tmp_path: Path, verifier: Verifier, frequencies: Path, form: str
) -> None:
    path = build_drafter(tmp_path / "p", verifier, form)
    edit_tensors(path, lambda t: t.update({"lm_head.weight": 2 * t["lm_head.weight"]}))
    chosen = config(vocab_policy="rebuild", draft_vocab_size=160)
    done = prepare_parent(path, verifier, chosen, tmp_path / "out", frequencies)
    after = stored(done.path)
    ids = np.arange(160) + after["d2t"]
    head = read_tensor(verifier.path, verifier.header(verifier.lm_head_key or ""))
    np.testing.assert_allclose(after["lm_head.weight"], 2 * head[ids], rtol=1e-5)
    assert np.flatnonzero(after["t2d"]).tolist() == ids.tolist()
    assert done.d2t_policy == "rebuild"
    assert {actions(done)[n] for n in ("d2t", "t2d", "lm_head.weight")} == {"rebuilt"}
    assert Drafter.load(done.path).draft_vocab_size == 160
    assert check_drafter(done.path, verifier, deep=True).findings == ()


def test_a_rebuilt_head_scores_every_shared_token_as_before(
    tmp_path: Path, verifier: Verifier, frequencies: Path
) -> None:
    """At all positions the shared tokens keep their logits, so their order, so acceptance of them.

    With the rows left where they stood (what speculators does, S7) hardly one would.
    """
    path = build_drafter(tmp_path / "p", verifier, is_head_apart=True)
    chosen = config(vocab_policy="rebuild")
    done = prepare_parent(path, verifier, chosen, tmp_path / "out", frequencies)
    before, after = stored(path), stored(done.path)
    states = np.random.default_rng(5).normal(size=(200, verifier.hidden_size)).astype(np.float32)
    old_ids, new_ids = (np.arange(DRAFT_VOCAB) + t["d2t"] for t in (before, after))
    shared = np.intersect1d(old_ids, new_ids)
    old, new = (
        (states @ t["lm_head.weight"].T)[:, np.searchsorted(ids, shared)]
        for t, ids in ((before, old_ids), (after, new_ids))
    )
    np.testing.assert_allclose(old, new, rtol=1e-4, atol=1e-5)
    left = (states @ before["lm_head.weight"].T)[:, np.searchsorted(new_ids, shared)]
    assert np.mean(old.argmax(axis=1) == new.argmax(axis=1)) == 1
    assert np.mean(old.argmax(axis=1) == left.argmax(axis=1)) < 0.2


def test_rebuilding_to_the_whole_vocabulary_needs_no_tables(
    tmp_path: Path, verifier: Verifier, frequencies: Path
) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    chosen = config(vocab_policy="rebuild", draft_vocab_size=VOCAB)
    done = prepare_parent(path, verifier, chosen, tmp_path / "out", frequencies)
    assert not {"d2t", "t2d"} & set(stored(done.path))
    assert check_drafter(done.path, verifier, deep=True).findings == ()


def test_a_chosen_vocabulary_is_taken_or_must_be_the_parents(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    ids = np.arange(7, 127, dtype=np.int64)
    rebuilt = config(vocab_policy="rebuild")
    done = prepare_parent(path, verifier, rebuilt, tmp_path / "out", vocab_ids=ids)
    after = stored(done.path)
    assert (np.arange(120) + after["d2t"]).tolist() == ids.tolist()
    with pytest.raises(ConfigError, match=f"expected the parent's {DRAFT_VOCAB} tokens .* found"):
        prepare_parent(path, verifier, config(), tmp_path / "b", vocab_ids=ids)
    own = np.arange(DRAFT_VOCAB) + stored(path)["d2t"]
    kept = prepare_parent(path, verifier, config(), tmp_path / "c", vocab_ids=own)
    assert kept.d2t_policy == "keep"


def test_rebuilding_without_frequencies_is_refused(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    with pytest.raises(ConfigError, match="token frequencies"):
        prepare_parent(path, verifier, config(vocab_policy="rebuild"), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head_dim", 14), ("num_heads", 2), ("num_kv_heads", 4), ("num_layers", 2),
        ("intermediate_size", 128), ("draft_vocab_size", 64), ("aux_layer_ids", (2, 15)),
    ],
)  # fmt: skip
def test_a_setting_that_contradicts_the_tensors_is_refused(
    tmp_path: Path, verifier: Verifier, name: str, value: Any
) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    with pytest.raises(ConfigError, match=rf"^{name}: the configuration says"):
        prepare_parent(path, verifier, config(**{name: value}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_head_dim_in_a_changed_config_is_refused(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    edit_config(path, lambda c: decoder(c).update(head_dim=14))
    with pytest.raises(CheckError, match="S1 layers"):
        prepare_parent(path, verifier, config(), tmp_path / "out")


def test_a_missing_tensor_starts_fresh_only_where_it_is_asked_for(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "p", verifier, "flat")
    edit_tensors(path, lambda t: t.pop(UP))
    with pytest.raises(CheckError, match=UP):
        prepare_parent(path, verifier, config(), tmp_path / "out")
    done = prepare_parent(path, verifier, config(allow_fresh=(UP,)), tmp_path / "out")
    assert actions(done)[UP] == "fresh"
    assert UP not in stored(done.path)


def test_a_norm_that_the_parent_lacks_must_be_asked_for(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    edit_config(path, lambda c: c.update(norm_before_fc=False))
    edit_tensors(path, lambda t: t.pop("input_norm.weight"))
    with pytest.raises(ConfigError, match=r"lacks input_norm\.weight"):
        prepare_parent(path, verifier, config(norm_before_fc=True), tmp_path / "out")
    allowed = config(norm_before_fc=True, allow_fresh=("input_norm.weight",))
    done = prepare_parent(path, verifier, allowed, tmp_path / "out")
    assert actions(done)["input_norm.weight"] == "fresh"
    assert done.warnings == (
        "norm_before_fc: the parent was trained with False, this training uses True",
    )


def test_a_norm_that_is_switched_off_is_recorded_as_dropped(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    done = prepare_parent(path, verifier, config(norm_before_fc=False), tmp_path / "out")
    assert actions(done)["input_norm.weight"] == "dropped"
    assert check_drafter(done.path, verifier).ok


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm_before_residual", False), ("norm_output", True), ("aux_layer_ids", (2, 14, 27)),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4}), ("sliding_window", 64),
    ],
)  # fmt: skip
def test_settings_are_inherited_unless_set_and_set_ones_are_warned_about(
    tmp_path: Path, verifier: Verifier, name: str, value: Any
) -> None:
    path = build_drafter(tmp_path / "p", verifier, "flat")
    kept = prepare_parent(path, verifier, config(), tmp_path / "kept")
    assert kept.warnings == ()
    assert getattr(Drafter.load(kept.path), name) == getattr(Drafter.load(path), name)
    done = prepare_parent(path, verifier, config(**{name: value}), tmp_path / "set")
    assert len(done.warnings) == 1
    assert done.warnings[0].startswith(f"{name}: the parent was trained with")
    assert getattr(Drafter.load(done.path), name) == value


def test_a_parent_without_rope_gets_vllms_default_and_a_warning(
    tmp_path: Path, verifier: Verifier
) -> None:
    path = build_drafter(tmp_path / "p", verifier, "flat")
    edit_config(path, lambda c: c.pop("rope_theta"))
    done = prepare_parent(path, verifier, config(), tmp_path / "out")
    assert any("rope_parameters" in warning for warning in done.warnings)
    assert Drafter.load(done.path).rope_parameters["rope_theta"] == 10000.0


def test_a_parent_of_another_verifier_is_refused(tmp_path: Path, verifier: Verifier) -> None:
    other = build_verifier(tmp_path / "other", "llama")
    path = build_drafter(tmp_path / "p", other)
    with pytest.raises(CheckError, match="S21"):
        prepare_parent(path, verifier, config(), tmp_path / "out")


def test_a_finished_folder_is_not_overwritten(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    shutil.copytree(path, tmp_path / "out")
    with pytest.raises(ConfigError, match="new or empty"):
        prepare_parent(path, verifier, config(), tmp_path / "out")


def test_the_parent_itself_is_untouched(tmp_path: Path, verifier: Verifier) -> None:
    path = build_drafter(tmp_path / "p", verifier)
    before = drafter_digest(path).root
    prepare_parent(path, verifier, config(), tmp_path / "out")
    assert drafter_digest(path).root == before
    assert len(stored(path)["lm_head.weight"]) == DRAFT_VOCAB
