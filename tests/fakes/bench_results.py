"""Bench results with the figures one asks for, as the eval package would have written them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.counters import AcceptanceCounts
from eval.records import EngineRecord
from eval.result import (
    ALL,
    BenchResult,
    BenchRow,
    Interval,
    Lossless,
    PromptSample,
    TokenSpread,
)
from eval.spec import BenchSpec, DrafterSpec, Prompt, ServerSpec


def interval(value: float, half_width: float = 0.05) -> Interval:
    return Interval(value=value, low=value - half_width, high=value + half_width)


def bench_row(drafter: str, digest: str | None, k: int = 3, **changes: object) -> BenchRow:
    """One drafter over all prompts at concurrency 1: acceptance length 1.6, speedup 1.2."""
    facts: dict[str, object] = {
        "drafter": drafter,
        "digest": digest,
        "k": k,
        "concurrency": 1,
        "category": ALL,
        "num_prompts": 24,
        "num_answers": 24,
        "acceptance": AcceptanceCounts(),
        "acceptance_length": interval(1.6),
        "acceptance_length_by_prompt": None,
        "acceptance_length_emitted": None,
        "acceptance_rate": interval(0.2),
        "acceptance_rate_at": (0.4, 0.15, 0.05),
        "conditional_acceptance_rate_at": (0.4, 0.375, 0.33),
        "decode_speedup": interval(1.2),
        "decode_speedup_by_prompt": interval(1.2),
        "throughput_ratio": interval(1.1),
        "tpot_ms": interval(50.0),
        "baseline_tpot_ms": interval(60.0),
        "ttft_ms": interval(100.0),
        "tokens_per_s": 18.0,
        "num_output_tokens": TokenSpread(total=1, mean=1, minimum=1, median=1, maximum=1),
        "step_cost": None,
        "why": None,
        "lossless": Lossless(num_compared=24, num_equal=24),
        **changes,
    }
    return BenchRow.model_validate(facts)


def prompt_samples(
    arm: str, accepted: Sequence[int], tpot_s: float = 0.05, k: int | None = 3
) -> tuple[PromptSample, ...]:
    """A sample a prompt: ten drafts that accepted so many tokens; chat and code in turn."""
    return tuple(
        PromptSample(
            arm=arm,
            k=k,
            concurrency=1,
            session="s",
            prompt_id=f"p{number}",
            category="code" if number % 2 else "chat",
            num_turns=1,
            num_prompt_tokens=5,
            num_tokens=21,
            num_decode_tokens=20,
            decode_s=20 * tpot_s * (1 + number / 100),
            ttft_s=0.1,
            latency_s=0.1 + 20 * tpot_s,
            acceptance=AcceptanceCounts(
                num_drafts=10, num_draft_tokens=30, num_accepted=count, accepted_at=(count, 0, 0)
            )
            if k
            else None,
        )
        for number, count in enumerate(accepted)
    )


def bench_result(
    rows: tuple[BenchRow, ...], paths: Mapping[str, Path], concurrency: tuple[int, ...] = (1,)
) -> BenchResult:
    """A whole result; `paths` names the folder of each drafter."""
    digests = {row.drafter: row.digest for row in rows}
    return BenchResult(
        spec=BenchSpec(
            server=ServerSpec(verifier=Path("/verifier")),
            drafters=tuple(
                DrafterSpec(name=name, path=path, digest=digests.get(name))
                for name, path in paths.items()
            ),
            prompts=(Prompt(id="p0", category="chat", turns=("Hello?",)),),
            prompts_name="eval_a.jsonl",
            k=tuple(sorted({row.k for row in rows})),
            concurrency=concurrency,
        ),
        prompts_digest="cd" * 32,
        pairing="interleaved",
        idle_cost=None,
        stopped_because="all prompts were asked",
        environment={"cpu": "a CPU | with a pipe in its name"},
        engines=(
            EngineRecord(
                name="baseline", arm="baseline", command=("x",), start_s=1.0, vllm_version="0.32.0"
            ),
        ),
        started_at="2026-11-29T00:00:00+00:00",
        duration_s=1.0,
        generation_s=0.5,
        baseline=(),
        results=rows,
        samples=(),
    )
