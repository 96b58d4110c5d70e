"""How long `harness data check` takes over many files of hidden states, by headers.

    python benchmarks/check_speed.py [--files 10000] [--tokens 128] [--hidden 64]

Writes a finished corpus of that many small files into a temporary folder, checks it as it is, then
with one file in a hundred damaged. Header and token ids are read, so the width does not matter.
"""

import argparse
import tempfile
import time
from pathlib import Path

import datasets
import torch

from harness.corpus.check import check_corpus
from harness.corpus.manifest import Plan, finish_stage
from harness.corpus.storage import encode
from harness.digests import digest_files

NUM_STATES = 4


def write_corpus(folder: Path, num_files: int, num_tokens: int, hidden: int) -> None:
    """A finished extraction whose states are all the same."""
    states = torch.zeros(num_tokens, NUM_STATES, hidden)
    rows = [[(row + at) % 1000 for at in range(num_tokens)] for row in range(num_files)]
    (folder / "hidden_states").mkdir(parents=True)
    for row, ids in enumerate(rows):
        path = folder / "hidden_states" / f"hs_{row}.safetensors"
        path.write_bytes(encode(states, ids, "float32"))
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"input_ids": rows}).save_to_disk(folder / "tokens")
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    config = {"aux_layer_ids": [2, 15, 27], "dtype": "float32"}
    plan = Plan(stage="extract", inputs={"tokens": "t", "verifier": "v"}, config=config)
    finish_stage(folder, plan, {"rows": num_files}, digest_files(folder, names), {"verifier": "v"})


def main() -> None:
    """Prints the seconds of both checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=64)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "corpus"
        write_corpus(folder, flags.files, flags.tokens, flags.hidden)
        began, cpu = time.perf_counter(), time.process_time()
        _, findings = check_corpus(folder)
        taken, used = time.perf_counter() - began, time.process_time() - cpu
        print(f"{flags.files} files: {taken:.1f} s ({used:.1f} s of CPU), {len(findings)} findings")
        for row in range(0, flags.files, 100):
            path = folder / "hidden_states" / f"hs_{row}.safetensors"
            path.write_bytes(path.read_bytes()[:-1])
        began = time.perf_counter()
        _, findings = check_corpus(folder)
        taken = time.perf_counter() - began
        print(f"one in a hundred cut short: {taken:.1f} s, {len(findings)} findings")


if __name__ == "__main__":
    main()
