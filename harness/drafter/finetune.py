"""A parent drafter made ready for training: any format in, a strict speculators folder out.

Every tensor of the child is accounted for: loaded, remapped, rebuilt, shared with the verifier, or
fresh, which needs to be asked for by name. Nothing is drawn at random here.
"""

import hashlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.config.load import Frozen
from harness.config.train import TrainConfig
from harness.drafter.check_tables import target_ids
from harness.drafter.checks import check_drafter, error_lines
from harness.drafter.convert import require_convertible, speculators_config
from harness.drafter.drafter import CONVERTED_KEY, Drafter, drafter_digest
from harness.drafter.inherit import inherit, require_agreement
from harness.drafter.keys import map_keys
from harness.drafter.layout import Layout, expected_layout
from harness.drafter.provenance import ParentRecord, TensorRecord, VocabPolicy
from harness.drafter.tensors import TensorHeader
from harness.drafter.values import Matrix, iter_chunks
from harness.drafter.verifier import Verifier
from harness.drafter.vocab import build_tables, load_frequencies, rebuild_head, select_tokens
from harness.drafter.writer import Source, Stored, write_drafter
from harness.errors import CheckError, ConfigError

_LACKING_RULES = ("S3", "S11", "S12")
_TABLES = ("d2t", "t2d", "lm_head.weight", "embed_tokens.weight")


class PreparedParent(Frozen):
    """A folder that a trainer loads strictly, and how it came about."""

    path: Path
    """`model.safetensors` in speculators names and `config.json`; fresh tensors are left out."""
    drafter: Drafter
    """Facts of the parent itself, its rope spelled out."""
    digest: str
    """Root digest of the parent."""
    parent: ParentRecord
    tensors: tuple[TensorRecord, ...]
    key_map: tuple[str, ...]
    d2t_policy: VocabPolicy
    d2t_sha256: str | None
    head_dim: int
    head_dim_source: Literal["parent tensors"] = "parent tensors"
    warnings: tuple[str, ...]


class _Parts(NamedTuple):
    """Tensors of the child to write, and what became of each."""

    sources: dict[str, Source]
    records: list[TensorRecord]


def prepare_parent(
    parent_path: Path,
    verifier: Verifier,
    config: TrainConfig,
    out_dir: Path,
    token_freq_path: Path | None = None,
    *,
    vocab_ids: npt.NDArray[np.int64] | None = None,
) -> PreparedParent:
    """Checks a parent, settles its vocabulary and writes it as a complete speculators folder.

    Args:
        parent_path: The parent's folder, in any format but MLA.
        verifier: The verifier of the new training; must be the parent's in every size.
        config: What was asked for. None is inherited; what contradicts a tensor is refused.
        out_dir: A new or empty folder.
        token_freq_path: `token_freq.pt` of the new corpus; needed by `vocab_policy: rebuild`
            unless `vocab_ids` are given.
        vocab_ids: The verifier ids of the child's draft vocabulary, ascending.

    Raises:
        CheckError: The parent is not sound.
        ConfigError: A contradiction, or a tensor that is missing and not in `allow_fresh`.
    """
    _require_usable(parent_path, verifier, config.allow_fresh)
    parent = Drafter.load(parent_path)
    require_convertible(parent)
    require_agreement(parent, verifier, config)
    child, warnings = inherit(parent, config)
    parts = _Parts({}, [])
    wanted = vocab_ids
    if wanted is None and config.vocab_policy == "rebuild":
        wanted = _choose_ids(parent, config, token_freq_path)
    ids = _settle_vocabulary(parent, verifier, config.vocab_policy, wanted, parts)
    child = child.model_copy(update={"draft_vocab_size": len(ids)})
    _take_tensors(parent, expected_layout(child), config.allow_fresh, parts)
    _share_embedding(parent, verifier, parts)
    write_drafter(out_dir, _child_config(child, verifier), parts.sources)
    d2t = parts.sources.get("d2t")
    digest = drafter_digest(parent_path).root
    return PreparedParent(
        path=out_dir,
        drafter=parent,
        digest=digest,
        parent=_record(parent, digest),
        tensors=tuple(sorted(parts.records, key=lambda record: record.name)),
        key_map=map_keys(parent.tensors).rules,
        d2t_policy=config.vocab_policy,
        d2t_sha256=_sha256(d2t) if isinstance(d2t, np.ndarray) else None,
        head_dim=child.head_dim,
        warnings=warnings,
    )


def _require_usable(path: Path, verifier: Verifier, allow_fresh: tuple[str, ...]) -> None:
    report = check_drafter(path, verifier, deep=True, purpose="finetune")
    errors = tuple(
        finding
        for finding in report.of_severity("error")
        if not (finding.rule in _LACKING_RULES and finding.subject in allow_fresh)
    )
    if errors:
        raise CheckError(error_lines(path, errors), errors[0].fix)


def _settle_vocabulary(
    parent: Drafter,
    verifier: Verifier,
    policy: Literal["keep", "rebuild"],
    wanted: npt.NDArray[np.int64] | None,
    parts: _Parts,
) -> npt.NDArray[np.int64]:
    """Adds head and tables to the parts; returns the child's verifier ids, ascending."""
    ids = target_ids(parent)
    if wanted is not None and policy == "keep" and not np.array_equal(wanted, ids):
        raise ConfigError(
            f"draft_vocab: expected the parent's {len(ids)} tokens (vocab_policy: keep), found "
            f"{len(wanted)} tokens, {len(np.intersect1d(wanted, ids))} of them the parent's",
            "set vocab_policy: rebuild, or build it with harness data vocab --from PARENT",
        )
    if policy == "keep" or wanted is None:
        _keep_head(parent, verifier, parts)
    else:
        ids = wanted
        _rebuild_head(parent, verifier, ids, parts)
    if len(ids) == parent.vocab_size:
        return ids
    tables = build_tables(ids, parent.vocab_size)
    for name, table in (("d2t", tables.d2t), ("t2d", tables.t2d)):
        parts.sources[name] = table
        is_kept = policy == "keep" and name in parent.stored_names
        action: Literal["loaded", "rebuilt"] = "loaded" if is_kept else "rebuilt"
        source = parent.stored_names.get(name) if is_kept else None
        note = None if is_kept else "mask of d2t" if policy == "keep" else "frequency"
        parts.records.append(TensorRecord(name=name, action=action, source=source, note=note))
    return ids


def _choose_ids(
    parent: Drafter, config: TrainConfig, freq_path: Path | None
) -> npt.NDArray[np.int64]:
    if freq_path is None:
        raise ConfigError(
            "vocab_policy: rebuild needs the token frequencies of the corpus, found none",
            "harness data prepare writes token_freq.pt",
        )
    size = min(config.draft_vocab_size or parent.draft_vocab_size, parent.vocab_size)
    return select_tokens(load_frequencies(freq_path), size, parent.vocab_size)


def _keep_head(parent: Drafter, verifier: Verifier, parts: _Parts) -> None:
    name = "lm_head.weight"
    if parent.has_own_lm_head:
        _load(parent, name, parts)
        return
    source = f"verifier:{verifier.lm_head_key}"
    parts.records.append(TensorRecord(name=name, action="shared", source=source))


def _rebuild_head(
    parent: Drafter, verifier: Verifier, ids: npt.NDArray[np.int64], parts: _Parts
) -> None:
    name, header = "lm_head.weight", parent.find("lm_head.weight")
    if header is None or verifier.lm_head_key is None:
        raise ConfigError(
            "vocab_policy: rebuild needs the parent's lm_head and the verifier's weights",
            "keep the parent's vocabulary (vocab_policy: keep)",
        )
    theirs = Matrix(verifier.path, verifier.header(verifier.lm_head_key))
    head = rebuild_head(Matrix(parent.path, header), target_ids(parent), theirs, ids)
    parts.sources[name] = head.rows
    note = (
        f"{head.num_kept} rows of the parent by verifier id, {head.num_new} of "
        f"verifier:{verifier.lm_head_key} x {head.ratio:.4g}"
    )
    source = parent.stored_names[name]
    parts.records.append(TensorRecord(name=name, action="rebuilt", source=source, note=note))


def _take_tensors(
    parent: Drafter, layout: Layout, allow_fresh: tuple[str, ...], parts: _Parts
) -> None:
    """Everything but tables and head: as it is, under its plain name, or not at all."""
    wanted = [name for name in layout.required if name not in _TABLES]
    lacking = [name for name in wanted if name not in parent.stored_names]
    refused = [name for name in lacking if name not in allow_fresh]
    if refused:
        raise ConfigError(
            f"{parent.path} lacks {', '.join(refused)}, which the configured drafter has",
            "leave the setting to the parent, or let each start fresh: --allow-fresh NAME",
        )
    for name in wanted:
        if name in lacking:
            parts.records.append(TensorRecord(name=name, action="fresh", source=None))
        else:
            _load(parent, name, parts)
    for name in sorted(set(parent.stored_names) - set(wanted) - set(_TABLES)):
        source = parent.stored_names[name]
        parts.records.append(TensorRecord(name=name, action="dropped", source=source))


def _share_embedding(parent: Drafter, verifier: Verifier, parts: _Parts) -> None:
    if parent.has_embed:
        _load(parent, "embed_tokens.weight", parts)
        return
    source = f"verifier:{verifier.embed_key}"
    parts.records.append(TensorRecord(name="embed_tokens.weight", action="shared", source=source))


def _load(parent: Drafter, name: str, parts: _Parts) -> None:
    key = parent.stored_names[name]
    parts.sources[name] = Stored(parent.path, parent.tensors[key])
    action: Literal["loaded", "remapped"] = "loaded" if key == name else "remapped"
    parts.records.append(TensorRecord(name=name, action=action, source=key))


def _child_config(child: Drafter, verifier: Verifier) -> dict[str, Any]:
    config = speculators_config(child)
    # What it says of verifier and tokens is the training's from here on, no conversion's invention.
    config.pop(CONVERTED_KEY, None)
    layer = config["transformer_layer_config"]
    kind = "full_attention" if child.sliding_window is None else "sliding_attention"
    layer |= {
        "head_dim": child.head_dim,
        "sliding_window": child.sliding_window,
        "use_sliding_window": child.sliding_window is not None,
        "layer_types": list(child.layer_types) or [kind] * child.num_layers,
    }
    spec = dict(config["speculators_config"])
    spec["verifier"] = {
        "name_or_path": str(verifier.path),
        "architectures": list(verifier.architectures),
    }
    return config | {"speculators_config": spec}


def _record(parent: Drafter, digest: str) -> ParentRecord:
    return ParentRecord(
        reference=str(parent.path),
        path=str(parent.path),
        format=parent.format,
        revision=None,
        root_digest=digest,
        tensor_digests={k: _tensor_sha256(parent, h) for k, h in sorted(parent.tensors.items())},
        run_id=None,
    )


def _tensor_sha256(parent: Drafter, header: TensorHeader) -> str:
    digest = hashlib.sha256()
    for chunk in iter_chunks(parent.path, header):
        digest.update(chunk.data)
    return digest.hexdigest()


def _sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
