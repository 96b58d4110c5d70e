"""Replay against serving: the same drafter, the same answers, the same K, in one run.

    python benchmarks/replay_speed.py --drafter FOLDER --verifier REF [--num-prompts 24]

vLLM answers at concurrency 1, and its generation time is taken (no start, no warm-up). Then the
very same answers are replayed; the hidden states are made before, and their seconds told apart.
Aim: at least 50 times faster. Also: how the time grows with tokens and with K, and what memory two
token budgets take.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from flags import build_parser, prompts_of

from eval.cells import Cell, CellKey
from eval.draft import DraftModel, load_tensors
from eval.engine import Engine
from eval.environment import ForeignLoad
from eval.facts import DraftFacts, VerifierFacts
from eval.plan import build_arms
from eval.replay import DEFAULT_BUDGET_TOKENS, trace
from eval.sequences import Row
from eval.spec import BenchSpec, DrafterSpec, Sampling, ServerSpec
from eval.transcripts import load_transcripts, read_rows, record_answers
from eval.verifier import VerifierParts
from eval.walk import Walk, sum_walks, walk_row
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier, verifier_digest
from harness.settings import load_settings, share_cores

LARGEST_K = 5
BUDGETS = (1024, 8192)


class Subject(NamedTuple):
    """What is replayed: enough to do it in another process."""

    drafter: Path
    draft: DraftFacts
    verifier: VerifierFacts
    states: Path

    def load(self) -> tuple[DraftModel, list[Row]]:
        """The model and the answers."""
        parts = VerifierParts.load(self.verifier, torch.float32)
        model = DraftModel.beside(self.draft, load_tensors(self.drafter), parts)
        return model, read_rows(load_transcripts(self.states))


def serve(flags: argparse.Namespace, verifier: Path, folder: Path) -> Cell:
    """One pass over the prompts in vLLM with the drafter, one request at a time."""
    spec = BenchSpec(
        server=ServerSpec(verifier=verifier, max_model_len=1024, max_num_seqs=1),
        drafters=(DrafterSpec(name="drafter", path=flags.drafter),),
        prompts=prompts_of(flags),
        prompts_name=str(flags.prompts),
        sampling=Sampling(max_tokens=flags.max_tokens),
    )
    engine = Engine("drafter", spec, folder)
    try:
        arm = build_arms(spec, flags.k)[0]
        key = CellKey(session="s", arm=arm.name, k=flags.k, concurrency=1, block=0)
        return engine.measure(key, arm, spec.prompts)
    finally:
        engine.close()


class Passes(NamedTuple):
    """Some passes of a replay, the walk included, after one that is not counted."""

    median_s: float
    least_s: float
    foreign_cpu_share: float
    """Of the machine, taken by other processes meanwhile."""


def count_walk(model: DraftModel, rows: Sequence[Row], k: int) -> Walk:
    """One pass of a replay, the walk included."""
    return sum_walks([walk_row(t.row, t.depths, k) for t in trace(model, rows, k)])


def replay_passes(model: DraftModel, rows: Sequence[Row], k: int, repeats: int = 5) -> Passes:
    """Replays the rows again and again."""
    count_walk(model, rows, k)
    others = ForeignLoad(None)
    found = []
    for _ in range(repeats):
        began = time.monotonic()
        count_walk(model, rows, k)
        found.append(time.monotonic() - began)
    return Passes(statistics.median(found), min(found), others.share())


def peak_bytes(subject: Subject, budget_tokens: int) -> int:
    """Greatest memory of a process that replays with this budget, less that without replaying."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        before, after = pool.apply(_measure_memory, (subject, budget_tokens))
    return (after - before) * 1024


def _measure_memory(subject: Subject, budget_tokens: int) -> tuple[int, int]:
    model, rows = subject.load()
    trace(model, rows[:1], 1, budget_tokens=1)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak, which is that of the load
    before = _peak_kib()
    trace(model, list(rows) * 8, LARGEST_K, budget_tokens=budget_tokens)
    return before, _peak_kib()


def _peak_kib() -> int:
    """Greatest resident size since the peak was last forgotten (proc(5), VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    """Measures and prints."""
    parser = build_parser(__doc__, num_prompts=24, max_tokens=64)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--verifier", required=True)
    parser.add_argument("--k", type=int, default=3)
    flags = parser.parse_args()
    share_cores()  # for the processes started here: torch is loaded in this one
    settings = load_settings()
    verifier = Verifier.load(flags.verifier, settings)
    facts = verifier_facts(verifier, verifier_digest(verifier, settings.cache_dir))
    draft = draft_facts(Drafter.load(flags.drafter), verifier)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cell = serve(flags, verifier.path, folder)
        began = time.monotonic()
        record_answers(
            facts,
            cell.answers,
            folder / "states",
            num_beyond=LARGEST_K - 1,
            aux_layer_ids=draft.aux_layer_ids,
            progress=lambda *_: None,
        )
        states_s = time.monotonic() - began
        subject = Subject(flags.drafter, draft, facts, folder / "states")
        compare(subject, cell, flags.k, states_s)


def compare(subject: Subject, cell: Cell, k: int, states_s: float) -> None:
    """Prints the ratio, the growth and the memory."""
    model, rows = subject.load()
    walk = count_walk(model, rows, k).acceptance
    served = cell.counters.acceptance
    replayed = replay_passes(model, rows, k)
    num_tokens = sum(row.num_answer_tokens for row in rows)
    print(
        f"{len(rows)} answers, {num_tokens} tokens, K = {k}: served in {cell.wall_s:.1f} s (others "
        f"took {cell.foreign_cpu_share:.0%} of the CPU), replayed in {replayed.median_s:.2f} s "
        f"(least {replayed.least_s:.2f} s; others took {replayed.foreign_cpu_share:.0%}), ratio "
        f"{cell.wall_s / replayed.median_s:.0f}; hidden states and what lies past the ends "
        f"{states_s:.1f} s, once"
    )
    print(
        f"drafts served {served.num_drafts}, replayed {walk.num_drafts}; accepted at position "
        f"served {served.accepted_at}, replayed {walk.accepted_at}"
    )
    by_tokens = [replay_passes(model, rows * times, k, 3).least_s for times in (1, 2, 4)]
    by_k = [replay_passes(model, rows, at, 3).least_s for at in (1, 3, 5)]
    print("tokens x1, x2, x4: " + ", ".join(f"{s / by_tokens[0]:.2f}x" for s in by_tokens))
    print("K = 1, 3, 5: " + ", ".join(f"{s:.2f} s" for s in by_k))
    for budget in (*BUDGETS, DEFAULT_BUDGET_TOKENS):
        print(f"budget of {budget} tokens: {peak_bytes(subject, budget) / 2**20:.0f} MiB more")


if __name__ == "__main__":
    main()
