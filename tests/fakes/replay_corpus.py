"""A corpus of made-up answers whose hidden states say what comes next, without running a verifier.

The last state of each token is the output head's row of the next one, so the answers are greedy by
construction; the aux states are noise.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc
from safetensors.numpy import save_file

from harness.corpus.manifest import Plan, finish_stage
from harness.digests import digest_files
from harness.drafter.values import read_tensor
from harness.drafter.verifier import Verifier, verifier_digest

PROMPT_TOKENS, ANSWER_TOKENS = 4, 12


def write_replay_corpus(
    folder: Path,
    verifier: Verifier,
    aux_layer_ids: Sequence[int],
    *,
    num_rows: int = 4,
    num_answer_tokens: int = ANSWER_TOKENS,
    num_other: int = 0,
    digest: str | None = None,
) -> Path:
    """A finished extract folder.

    Args:
        folder: Where.
        verifier: Whose head says what comes next.
        aux_layer_ids: Layers that it says it holds.
        num_rows: Conversations; their categories take turns.
        num_answer_tokens: Of each row; 0: prompts alone.
        num_other: Answer tokens of each row that the verifier would not have said.
        digest: Of the verifier that it says it was made with; None: the true one.
    """
    random = np.random.default_rng(0)
    assert verifier.lm_head_key
    head = read_tensor(verifier.path, verifier.header(verifier.lm_head_key))
    length = PROMPT_TOKENS + num_answer_tokens
    rows = [random.integers(3, verifier.vocab_size, length).tolist() for _ in range(num_rows)]
    (folder / "hidden_states").mkdir(parents=True)
    for number, row in enumerate(rows):
        shape = (length, len(aux_layer_ids) + 1, verifier.hidden_size)
        states = random.normal(size=shape).astype(np.float32)
        said = list(row)
        for place in range(length - num_other, length):
            said[place] = (row[place] + 1) % verifier.vocab_size
        states[:-1, -1] = head[said[1:]]
        tensors = {"hidden_states": states, "token_ids": np.array(row, dtype=np.int64)}
        save_file(tensors, folder / "hidden_states" / f"hs_{number}.safetensors")
    mask = [0] * PROMPT_TOKENS + [1] * num_answer_tokens
    _write_tokens(folder / "tokens", rows, mask)
    names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
    plan = Plan(
        stage="extract",
        inputs={"tokens": "0" * 64, "verifier": digest or verifier_digest(verifier)},
        config={"aux_layer_ids": list(aux_layer_ids), "dtype": "float32"},
    )
    counts = {
        "conversations": num_rows,
        "rows": num_rows,
        "tokens": num_rows * length,
        "loss_tokens": num_rows * num_answer_tokens,
        "longest_row_tokens": length,
    }
    origins = {"verifier": str(verifier.path) if digest is None else "another-verifier"}
    finish_stage(folder, plan, counts, digest_files(folder, names), origins)
    return folder


def _write_tokens(folder: Path, rows: list[list[int]], mask: list[int]) -> None:
    folder.mkdir()
    table = pa.table(
        {
            "id": [f"c{number}" for number in range(len(rows))],
            "category": ["chat" if number % 2 else "code" for number in range(len(rows))],
            "input_ids": rows,
            "loss_mask": [mask] * len(rows),
        }
    )
    with (
        pa.OSFile(str(folder / "data.arrow"), "wb") as sink,
        ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
