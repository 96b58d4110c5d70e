"""In what trainings differ: the settings that were resolved for them, and where they come from."""

import json
from collections.abc import Mapping, Sequence

from harness.config.load import Frozen, flatten
from harness.tracking import names
from harness.tracking.records import RunSummary
from harness.tracking.spelling import param_text
from harness.tracking.store import Store

_LONG = ("tensors", "key_map", "argv", "warnings")
"""Of a provenance record: lists that fill pages, or that say again what other keys say."""
_PARENT = ("reference", "root_digest", "revision", "format")
_SAID_BY_PARAMS = ("head_dim", "head_dim_source", "schema_version")


class KeyDifference(Frozen):
    """A key whose values differ; None where a drafter has none."""

    key: str
    values: tuple[str | None, ...]
    """Of each drafter, in their order."""


def param_differences(trainings: Sequence[RunSummary | None]) -> tuple[KeyDifference, ...]:
    """Params that are not equal in all known trainings."""
    return _different([None if run is None else run.params for run in trainings])


def provenance_differences(
    trainings: Sequence[RunSummary | None], store: Store
) -> tuple[KeyDifference, ...]:
    """Parents, verifiers, corpora, code, versions and hardware that are not equal in all."""
    return _different([None if run is None else _provenance(run, store) for run in trainings])


def _provenance(run: RunSummary, store: Store) -> dict[str, str]:
    """The record as dotted keys; of a run without one, what its tags say."""
    text = store.read_text(run.run_id, names.ARTIFACT_PROVENANCE)
    record = json.loads(text) if text else {}
    parent = record.pop("parent", None) or {}
    record["parent"] = {key: parent[key] for key in _PARENT if key in parent}
    left_out = (*_LONG, *_SAID_BY_PARAMS)
    flat = flatten({key: value for key, value in record.items() if key not in left_out})
    spelled = {key: param_text(value) for key, value in flat.items() if value not in ({}, None)}
    tags = (
        names.TAG_VERIFIER, names.TAG_VERIFIER_DIGEST, names.TAG_CORPUS_DIGEST,
        names.TAG_FINETUNE_PARENT, names.TAG_FINETUNE_PARENT_DIGEST, names.TAG_CODE_COMMIT,
    )  # fmt: skip
    return spelled or {tag: run.tags[tag] for tag in tags if tag in run.tags}


def _different(documents: Sequence[Mapping[str, str] | None]) -> tuple[KeyDifference, ...]:
    known = [document for document in documents if document is not None]
    if len(known) < 2:  # noqa: PLR2004 - a difference is between two
        return ()
    keys = dict.fromkeys(key for document in known for key in document)
    return tuple(
        KeyDifference(key=key, values=tuple(d.get(key) if d else None for d in documents))
        for key in keys
        if len({document.get(key) for document in known}) > 1
    )
