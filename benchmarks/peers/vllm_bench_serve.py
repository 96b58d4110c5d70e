"""Our figures against those of `vllm bench serve`: one server, equal prompts, in turn.

    python benchmarks/peers/vllm_bench_serve.py --drafter FOLDER --verifier FOLDER [--repeats 4]

Acceptance length and rates by position must be equal, TPOT within 3 % (of each pass the mean of
requests' TPOT, of the passes the median). Both clients ask one request at a time, temperature 0, in
the order A B, B A.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from vllm.benchmarks.serve import add_cli_args, main_async

from eval.client import ask
from eval.counters import AcceptanceCounts, count_answers
from eval.prompts import load_prompts, pick_prompts
from eval.server import VllmServer
from eval.spec import DrafterSpec, Prompt, Sampling, ServerSpec


def ask_with_peer(
    server: VllmServer, prompts: tuple[Prompt, ...], folder: Path, max_tokens: int, tokenizer: Path
) -> dict[str, Any]:
    """VLLM's own result document."""
    dataset = folder / "prompts.jsonl"
    dataset.write_text("\n".join(json.dumps({"prompt": p.turns[0]}) for p in prompts))
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    arguments = [
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", server.base_url, "--model", server.model, "--tokenizer", str(tokenizer)),
        *("--dataset-name", "custom", "--dataset-path", str(dataset), "--skip-chat-template"),
        *("--custom-output-len", str(max_tokens), "--num-prompts", str(len(prompts))),
        *("--disable-shuffle", "--temperature", "0", "--max-concurrency", "1"),
        *("--request-rate", "inf", "--num-warmups", "0"),
    ]
    found: dict[str, Any] = asyncio.run(main_async(parser.parse_args(arguments)))
    return found


def main() -> None:
    """Prints both instruments' figures side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--verifier", type=Path, required=True)
    parser.add_argument(
        "--prompts", type=Path, default="experiments/smollm2-135m/prompts/eval.jsonl"
    )
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=4)
    flags = parser.parse_args()
    prompts = pick_prompts(load_prompts(flags.prompts), flags.num_prompts)
    ours_ms: list[float] = []
    theirs_ms: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = ServerSpec(verifier=flags.verifier, max_model_len=1024, max_num_seqs=4)
        drafter = DrafterSpec(name="drafter", path=flags.drafter)
        with VllmServer(spec, folder / "log", drafter, 3) as server:
            sampling = Sampling(max_tokens=flags.max_tokens)
            # A pass of each that is in no figure: imports, tokenizers, first requests.
            ask(server.base_url, server.model, prompts[:2], sampling)
            ask_with_peer(server, prompts[:2], folder, flags.max_tokens, flags.verifier)
            for repeat in range(flags.repeats):
                for is_ours in (True, False) if repeat % 2 == 0 else (False, True):
                    if is_ours:
                        batch = ask(server.base_url, server.model, prompts, sampling)
                        counts = count_answers(batch.require_complete().answers).acceptance
                        ours_ms.append(
                            1e3 * statistics.fmean(a.tpot_s or 0.0 for a in batch.answers)
                        )
                    else:
                        peer = ask_with_peer(
                            server, prompts, folder, flags.max_tokens, flags.verifier
                        )
                        theirs_ms.append(peer["mean_tpot_ms"])
    show(counts, peer, statistics.median(ours_ms), statistics.median(theirs_ms))


def show(counts: AcceptanceCounts, peer: dict[str, Any], ours_ms: float, theirs_ms: float) -> None:
    """One line a figure: ours, theirs, whether they agree."""
    rates = peer["spec_decode_per_position_acceptance_rates"]
    rows = [("acceptance length", counts.acceptance_length, peer["spec_decode_acceptance_length"])]
    rows += [
        (f"rate at position {i + 1}", ours, theirs)
        for i, (ours, theirs) in enumerate(zip(counts.acceptance_rate_at, rates, strict=True))
    ]
    for name, ours, theirs in rows:
        print(f"{name}: ours {ours:.6f}, vllm bench serve {theirs:.6f}, equal {ours == theirs}")
    ratio = ours_ms / theirs_ms
    print(f"TPOT: ours {ours_ms:.2f} ms, vllm bench serve {theirs_ms:.2f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
