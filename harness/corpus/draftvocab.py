"""The draft vocabulary of a corpus: the tokens that its answers need, as d2t and t2d.

The folder holds `d2t.npy` (int64 [R], offsets) and `t2d.npy` (bool [V]), as speculators 0.9.0 takes
them, and `vocab.json`, which says what they cover. R draft vocabulary, V verifier vocabulary.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from harness.config.load import Frozen
from harness.corpus.manifest import (
    Manifest,
    Plan,
    begin_stage,
    check_files,
    finish_stage,
    hold_folder,
    load_manifest,
)
from harness.corpus.rowfiles import TOKEN_FREQ_NAME
from harness.corpus.template import load_tokenizer, special_ids
from harness.corpus.tokens import require_verifier
from harness.digests import digest_files, digest_json, write_atomic
from harness.drafter.verifier import Verifier
from harness.drafter.vocab import Ids, build_tables, load_frequencies, select_tokens
from harness.errors import CheckError, ConfigError

D2T_NAME = "d2t.npy"
T2D_NAME = "t2d.npy"
FACTS_NAME = "vocab.json"


class VocabConfig(Frozen):
    """How many tokens, and which in any case."""

    size: int | None = Field(default=None, ge=1)
    """Tokens that the drafter can propose."""
    coverage: float | None = Field(default=None, gt=0, le=1)
    """Share of the answer tokens to be reached with as few as can be."""
    pinned: tuple[str, ...] = ()
    """Token ids, or texts of which every token is taken."""
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _size_or_coverage(self) -> "VocabConfig":
        if self.size is not None and self.coverage is not None:
            raise ValueError("expected a size or a coverage, found both")
        return self


class DraftVocab(NamedTuple):
    """A finished draft vocabulary."""

    target_ids: Ids
    """Verifier ids, ascending, [R]."""
    vocab_size: int
    """V."""
    folder: Path
    verifier_digest: str
    digest: str


class _Required(NamedTuple):
    special: frozenset[int]
    pinned: frozenset[int]


def build_vocab(
    tokens_dir: Path,
    verifier: Verifier,
    out_dir: Path,
    config: VocabConfig,
    *,
    parent_ids: Ids | None = None,
    parent_name: str | None = None,
    cache_dir: Path | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Chooses tokens by how often they occur in answers; special and pinned ones are always in.

    Args:
        tokens_dir: A finished `harness data prepare`.
        verifier: Whose answers they are.
        out_dir: The stage's folder; owned by the stage afterwards.
        config: How many, and which in any case.
        parent_ids: Verifier ids of a parent's draft vocabulary, which is kept as it is.
        parent_name: How the parent was referred to.
        cache_dir: Keeps the verifier's digest between calls.
        overwrite: Replace other or finished work in `out_dir`.

    Raises:
        ConfigError: Neither or both of a size and a parent, a size that does not fit, an unknown
            token, or `out_dir` holds other work.
        CheckError: The tokens were changed, or are another verifier's.
    """
    _require_one_way(config, parent_ids)
    source = load_manifest(tokens_dir, "prepare")
    check_files(tokens_dir, source, deep=True)
    require_verifier(source, verifier, cache_dir)
    inputs = {"tokens": source.digest, "verifier": source.inputs["verifier"]}
    if parent_ids is not None:
        inputs["parent vocabulary"] = digest_json(parent_ids.tolist())
    asked = config.model_dump(exclude={"trust_remote_code"}, exclude_none=True)
    plan = Plan(stage="vocab", inputs=inputs, config=asked)
    with hold_folder(out_dir):
        if finished := begin_stage(out_dir, plan, overwrite=overwrite):
            return finished
        frequencies = load_frequencies(tokens_dir / TOKEN_FREQ_NAME)
        required = _find_required(verifier, config)
        if parent_ids is None:
            ids = choose_ids(
                frequencies, required.special | required.pinned, config, verifier.vocab_size
            )
        else:
            ids = _require_fitting(parent_ids, verifier.vocab_size)
        counts = _write(out_dir, ids, frequencies, required, verifier.vocab_size)
        files = digest_files(out_dir, (D2T_NAME, T2D_NAME, FACTS_NAME))
        origins = {**source.origins, **({"parent": parent_name} if parent_name else {})}
        return finish_stage(out_dir, plan, counts, files, origins)


def choose_ids(
    frequencies: Mapping[int, int],
    required: frozenset[int],
    config: VocabConfig,
    vocab_size: int,
) -> Ids:
    """Verifier ids, ascending: what is required, then the most frequent, ties to the lowest.

    Raises:
        ConfigError: More are required than the size allows, or the verifier has fewer.
    """
    size = config.size or _size_for(frequencies, required, config.coverage or 1.0)
    if not len(required) <= size <= vocab_size:
        raise ConfigError(
            f"size: expected from {len(required)} (special and pinned tokens) to {vocab_size} "
            f"(the verifier's vocabulary), found {size}"
        )
    first = 1 + max(frequencies.values(), default=0)
    return select_tokens({**frequencies, **dict.fromkeys(required, first)}, size, vocab_size)


def load_vocab(folder: Path) -> DraftVocab:
    """A finished draft vocabulary, checked byte by byte.

    Raises:
        ConfigError: No finished one there.
        CheckError: A file was changed.
    """
    manifest = load_manifest(folder, "vocab")
    check_files(folder, manifest, deep=True)
    mask = np.load(folder / T2D_NAME, allow_pickle=False)
    return DraftVocab(
        target_ids=np.flatnonzero(mask).astype(np.int64),
        vocab_size=len(mask),
        folder=folder.resolve(),
        verifier_digest=manifest.inputs["verifier"],
        digest=manifest.digest,
    )


def _require_one_way(config: VocabConfig, parent_ids: Ids | None) -> None:
    is_sized = config.size is not None or config.coverage is not None
    if is_sized == (parent_ids is not None):
        found = "both" if is_sized else "neither"
        raise ConfigError(
            f"expected a size or coverage, or a parent to keep the vocabulary of, found {found}",
            "give --size, --coverage or --from",
        )
    if parent_ids is not None and config.pinned:
        raise ConfigError(
            "pinned: a parent's vocabulary is kept as it is",
            "give --size to build another; its head is rebuilt then (vocab_policy: rebuild)",
        )


def _size_for(frequencies: Mapping[int, int], required: frozenset[int], coverage: float) -> int:
    total = sum(frequencies.values())
    covered = sum(frequencies.get(token, 0) for token in required)
    size = len(required)
    others = sorted((n for token, n in frequencies.items() if token not in required), reverse=True)
    for count in others:
        if covered >= coverage * total:
            break
        covered, size = covered + count, size + 1
    return size


def _find_required(verifier: Verifier, config: VocabConfig) -> _Required:
    tokenizer = load_tokenizer(verifier.path, trust_remote_code=config.trust_remote_code)
    special = special_ids(verifier.path, tokenizer)
    pinned: set[int] = set()
    for word in config.pinned:
        found = [int(word)] if word.isdecimal() else _encode(tokenizer, word)
        if not found or max(found) >= verifier.vocab_size:
            raise ConfigError(
                f"pinned: expected a token id below {verifier.vocab_size} or a text, found {word!r}"
            )
        pinned.update(found)
    known = frozenset(token for token in special if token < verifier.vocab_size)
    return _Required(known, frozenset(pinned))


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _require_fitting(ids: Ids, vocab_size: int) -> Ids:
    if not len(ids) or (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= vocab_size:
        raise CheckError(
            f"expected a parent's vocabulary of ascending ids below {vocab_size}, found "
            f"{len(ids)} ids up to {int(ids.max(initial=0))}",
            "harness verify says what is wrong with the parent",
        )
    return ids


def _write(
    out_dir: Path,
    ids: Ids,
    frequencies: Mapping[int, int],
    required: _Required,
    vocab_size: int,
) -> dict[str, int]:
    tables = build_tables(ids, vocab_size)
    for name, table in ((D2T_NAME, tables.d2t), (T2D_NAME, tables.t2d)):
        write_atomic(out_dir / name, _npy(table))
    chosen = frozenset(ids.tolist())
    total = sum(frequencies.values())
    counts = {
        "draft_vocab": len(ids),
        "answer_tokens": total,
        "covered_tokens": sum(frequencies.get(token, 0) for token in chosen),
        "never_answered": sum(token not in frequencies for token in chosen),
        "special": len(required.special & chosen),
        "special_missing": len(required.special - chosen),
        "pinned": len(required.pinned),
    }
    facts = {**counts, "coverage": counts["covered_tokens"] / total}
    write_atomic(out_dir / FACTS_NAME, json.dumps(facts, indent=2) + "\n")
    return counts


def _npy(table: npt.NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, table, allow_pickle=False)
    return stream.getvalue()
