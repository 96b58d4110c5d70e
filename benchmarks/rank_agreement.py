"""Does replay rank checkpoints as serving does?

    python benchmarks/rank_agreement.py --drafter REF --drafter REF ... --verifier REF

Each checkpoint is replayed over the verifier's own greedy answers, and served in vLLM on the same
prompts, changed in place inside one engine; only counts are taken, so the machine may be busy.
Prints the pairs and Spearman's rho (aim: at least 0.95, over 8 or more of different quality).
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from flags import build_parser, prompts_of
from scipy import stats

from eval.cells import CellKey
from eval.draft import DraftModel, load_tensors
from eval.engine import Engine
from eval.facts import DraftFacts, VerifierFacts
from eval.plan import build_arms
from eval.replay import trace
from eval.sequences import Row
from eval.spec import BenchSpec, DrafterSpec, Prompt, Sampling, ServerSpec
from eval.transcripts import read_rows, record_prompts
from eval.verifier import VerifierParts
from eval.walk import sum_walks, walk_row
from harness.drafter.arithmetic import draft_facts, verifier_facts
from harness.drafter.drafter import Drafter
from harness.drafter.verifier import Verifier, verifier_digest
from harness.settings import load_settings
from harness.tracking.resolve import ResolvedDrafter, resolve_drafter


class Asked(NamedTuple):
    """What both sides are given."""

    verifier: VerifierFacts
    prompts: tuple[Prompt, ...]
    prompts_name: str
    max_tokens: int
    k: int


def replay_all(asked: Asked, drafters: Sequence[tuple[Path, DraftFacts]]) -> list[float]:
    """Acceptance length of the walk of each drafter."""
    parts = VerifierParts.load(asked.verifier, torch.float32)
    rows: dict[tuple[int, ...], list[Row]] = {}
    lengths = []
    with tempfile.TemporaryDirectory() as name:
        for path, facts in drafters:
            layers = facts.aux_layer_ids
            if layers not in rows:
                recorded = record_prompts(
                    asked.verifier,
                    asked.prompts,
                    Path(name) / f"states-{len(rows)}",
                    max_tokens=asked.max_tokens,
                    num_beyond=asked.k - 1,
                    aux_layer_ids=layers,
                    progress=lambda *_: None,
                )
                rows[layers] = read_rows(recorded)
            model = DraftModel.beside(facts, load_tensors(path), parts)
            found = trace(model, rows[layers], asked.k)
            walk = sum_walks([walk_row(t.row, t.depths, asked.k) for t in found])
            lengths.append(walk.acceptance.acceptance_length)
    return lengths


def serve_all(asked: Asked, drafters: Sequence[ResolvedDrafter]) -> list[float]:
    """Acceptance length of each drafter as vLLM counts it."""
    with tempfile.TemporaryDirectory() as name:
        spec = BenchSpec(
            server=ServerSpec(verifier=asked.verifier.path, max_model_len=1024, max_num_seqs=4),
            drafters=tuple(DrafterSpec(name=d.reference, path=d.path) for d in drafters),
            prompts=asked.prompts,
            prompts_name=asked.prompts_name,
            sampling=Sampling(max_tokens=asked.max_tokens),
            concurrency=(4,),
            num_warmup=1,
        )
        engine = Engine("swap", spec, Path(name), is_swapping=True)
        lengths = []
        try:
            for arm in build_arms(spec, asked.k):
                key = CellKey(session="s", arm=arm.name, k=asked.k, concurrency=4, block=0)
                cell = engine.measure(key, arm, spec.prompts)
                lengths.append(cell.counters.acceptance.acceptance_length)
        finally:
            engine.close()
    return lengths


def main() -> None:
    """Replays, serves and prints."""
    parser = build_parser(__doc__, num_prompts=24, max_tokens=64)
    parser.add_argument("--drafter", action="append", required=True)
    parser.add_argument("--verifier", required=True)
    parser.add_argument("--k", type=int, default=3)
    flags = parser.parse_args()
    settings = load_settings()
    verifier = Verifier.load(flags.verifier, settings)
    asked = Asked(
        verifier_facts(verifier, verifier_digest(verifier, settings.cache_dir)),
        prompts_of(flags),
        str(flags.prompts),
        flags.max_tokens,
        flags.k,
    )
    drafters = [resolve_drafter(reference, settings) for reference in flags.drafter]
    facts = [(d.path, draft_facts(Drafter.load(d.path), verifier)) for d in drafters]
    replayed = replay_all(asked, facts)
    served = serve_all(asked, drafters)
    print("replayed  served  drafter")
    for drafter, one, other in sorted(
        zip(drafters, replayed, served, strict=True), key=lambda pair: pair[1]
    ):
        print(f"{one:8.3f} {other:7.3f}  {drafter.reference}")
    found = stats.spearmanr(replayed, served)
    print(
        f"{len(drafters)} checkpoints, {len(asked.prompts)} prompts x {asked.max_tokens} tokens, "
        f"K = {asked.k}: Spearman's rho {found.statistic:.3f}"
    )


if __name__ == "__main__":
    main()
