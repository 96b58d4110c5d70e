"""The verifier as the trainer may see it: three tensors, found by their true names, and one width.

speculators looks for embedding, head and final norm by the end of their names and reads the config
through transformers' classes, which fails on wrappers and on types it does not know. The view is a
folder with a plain config and links to the shards, so that neither is left to chance.
"""

import json
import shutil
from pathlib import Path

from harness.digests import write_atomic
from harness.drafter.tensors import INDEX_NAME
from harness.drafter.verifier import Verifier, final_norm_key
from harness.errors import ConfigError


def write_view(verifier: Verifier, folder: Path) -> Path:
    """Makes the folder and returns it; the shards are linked, not copied.

    Raises:
        ConfigError: The verifier lacks one of the tensors that training targets are made of.
    """
    keys = require_keys(verifier)
    files = {key: Path(verifier.header(key).file).name for key in keys}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in sorted(set(files.values())):
        (folder / name).symlink_to((verifier.path / name).resolve())
    config = {
        "model_type": "llama",
        "architectures": list(verifier.architectures),
        "hidden_size": verifier.hidden_size,
        "vocab_size": verifier.vocab_size,
        "num_hidden_layers": verifier.num_layers,
        # Any divisor of the width would do: no layer is built from this config.
        "num_attention_heads": 1,
    }
    write_atomic(folder / "config.json", json.dumps(config, indent=2))
    write_atomic(folder / INDEX_NAME, json.dumps({"weight_map": files}, indent=2))
    return folder


def require_keys(verifier: Verifier) -> tuple[str, ...]:
    """Names of embedding, head and final norm; the head's is the embedding's where they are tied.

    Raises:
        ConfigError: Names what is missing.
    """
    embed, head = verifier.embed_key, verifier.lm_head_key
    if embed is None or head is None:
        raise ConfigError(
            f"verifier: expected an embedding and an output head in {verifier.path}, found "
            f"{embed} and {head}"
        )
    return tuple(dict.fromkeys((embed, head, final_norm_key(verifier))))
