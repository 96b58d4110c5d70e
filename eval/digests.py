"""Digests of documents: equal content, equal digest, whatever the order of its keys."""

import hashlib
import json


def digest_json(document: object) -> str:
    """SHA-256 of a JSON document in its one canonical spelling: sorted keys, no spaces."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
