import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.words_template import build_tokenizer

from harness.corpus import draftvocab
from harness.corpus.draftvocab import VocabConfig, build_vocab, choose_ids, load_vocab
from harness.corpus.manifest import Manifest, Plan, finish_stage
from harness.digests import digest_files
from harness.drafter.verifier import Verifier
from harness.drafter.vocab import Ids
from harness.errors import CheckError, ConfigError

FREQUENCIES = {20: 50, 21: 30, 40: 15, 41: 4, 42: 1}
REQUIRED = frozenset({3, 41})


def chosen(**asked: Any) -> list[int]:
    ids = choose_ids(FREQUENCIES, REQUIRED, VocabConfig.model_validate(asked), 100)
    return [int(one) for one in ids]


def test_what_is_required_is_in_and_the_rest_is_the_most_frequent() -> None:
    assert chosen(size=4) == [3, 20, 21, 41]
    assert chosen(size=2) == [3, 41]
    assert chosen(size=8) == [0, 1, 3, 20, 21, 40, 41, 42]


def test_a_coverage_is_reached_with_as_few_as_can_be() -> None:
    # Required cover 4 of 100; 20 and 21 add 80; 40 adds 15.
    assert chosen(coverage=0.84) == [3, 20, 21, 41]
    assert chosen(coverage=0.85) == [3, 20, 21, 40, 41]
    assert chosen(coverage=0.01) == [3, 41]
    assert chosen(coverage=1.0) == [3, 20, 21, 40, 41, 42]


@pytest.mark.parametrize("size", [1, 101])
def test_a_size_that_does_not_fit_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"expected from 2 .* to 100 .*, found {size}"):
        chosen(size=size)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(draftvocab, "load_tokenizer", lambda *_, **__: build_tokenizer())
    monkeypatch.setattr(draftvocab, "require_verifier", lambda *_: None)
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    torch.save(FREQUENCIES, tokens / "token_freq.pt")
    plan = Plan(stage="prepare", inputs={"verifier": "v" * 64}, config={})
    finish_stage(tokens, plan, {}, digest_files(tokens, ["token_freq.pt"]), {"verifier": "tiny"})
    verifier = Verifier(
        reference="tiny", path=tmp_path, revision=None, digest=None, architectures=(),
        model_type="llama", hidden_size=8, num_layers=4, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, vocab_size=102, max_position_embeddings=128,
        rms_norm_eps=None, rope_parameters={}, dtype=None, embed_key=None, lm_head_key=None,
        is_tied=False,
    )  # fmt: skip

    def call(out: str = "out", parent_ids: Ids | None = None, **asked: Any) -> Manifest:
        config = VocabConfig.model_validate(asked)
        return build_vocab(
            tokens, verifier, tmp_path / out, config, parent_ids=parent_ids, parent_name="p"
        )

    return call


def test_tables_hold_special_and_pinned_tokens_and_say_what_they_cover(
    build: Any, tmp_path: Path
) -> None:
    a_and_b = build_tokenizer()("ab", add_special_tokens=False)["input_ids"]
    manifest = build(size=12, pinned=("ab", "42"))
    d2t, t2d = (np.load(tmp_path / "out" / name) for name in ("d2t.npy", "t2d.npy"))
    assert (d2t.dtype, t2d.dtype, t2d.shape) == (np.int64, np.bool_, (102,))
    ids = d2t + np.arange(12)
    assert ids.tolist() == np.flatnonzero(t2d).tolist()
    # Six special tokens are the first ids of this tokenizer; the seventh is for unknown letters.
    assert {0, 1, 2, 3, 4, 5, 42, *a_and_b, 20, 21} <= set(ids.tolist())
    facts = json.loads((tmp_path / "out" / "vocab.json").read_text())
    assert facts["covered_tokens"] == sum(FREQUENCIES.get(int(i), 0) for i in ids)
    assert facts["coverage"] == facts["covered_tokens"] / 100
    assert manifest.counts["draft_vocab"] == 12
    found = load_vocab(tmp_path / "out")
    assert found.target_ids.tolist() == ids.tolist()
    assert (found.vocab_size, found.verifier_digest) == (102, "v" * 64)


def test_a_parents_vocabulary_is_kept_and_what_it_lacks_is_counted(build: Any) -> None:
    counts = build(parent_ids=np.array([0, 20, 40], dtype=np.int64)).counts
    assert (counts["draft_vocab"], counts["covered_tokens"]) == (3, 65)
    assert counts["special_missing"] == 6


def test_equal_choices_have_equal_digests_and_others_do_not(build: Any) -> None:
    first = build("a", size=12).digest
    assert build("b", size=12).digest == first
    assert build("c", size=13).digest != first
    assert build("d", size=12, pinned=("99",)).digest != first


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({}, "found neither"),
        ({"size": 9, "parent_ids": np.array([1])}, "found both"),
        ({"parent_ids": np.array([1]), "pinned": ("4",)}, "kept as it is"),
        ({"size": 9, "pinned": ("102",)}, "a token id below 102 or a text, found '102'"),
        ({"size": 9, "pinned": ("",)}, "found ''"),
        ({"size": 2}, "expected from 7"),
    ],
)
def test_what_cannot_be_is_refused(build: Any, asked: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build(**asked)


def test_a_broken_parent_and_a_changed_table_are_refused(build: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="ascending ids below 102"):
        build(parent_ids=np.array([5, 5, 9]))
    build("ok", size=9)
    path = tmp_path / "ok" / "t2d.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckError, match=r"t2d\.npy was changed"):
        load_vocab(tmp_path / "ok")


def test_a_size_and_a_coverage_contradict() -> None:
    with pytest.raises(ValueError, match="a size or a coverage, found both"):
        VocabConfig(size=4, coverage=0.5)
