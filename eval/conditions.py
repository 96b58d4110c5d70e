"""Under what a measurement was made, and in what two of them differ.

Figures of unlike measurements are no comparison: acceptance depends on prompts, verifier, dtype and
sampling, speed on all of it.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from eval.compat import VLLM_DISTRIBUTIONS
from eval.replayresult import ReplayResult
from eval.result import BenchResult
from eval.spec import Frozen

_HARDWARE = ("cpu", "num_cpus", "gpus")


class Unlike(Frozen):
    """One condition in which measurements differ."""

    what: str
    values: tuple[str, ...]
    """Of each measurement, in their order."""


def bench_conditions(result: BenchResult, verifier_digest: str | None = None) -> dict[str, str]:
    """What must be equal for figures of two benches to be compared, as text by name.

    K and concurrency are not among it: rows are picked by them.

    Args:
        result: The bench.
        verifier_digest: Of the verifier's files, where it was recorded; else its folder's name
            stands for it.
    """
    sampling, environment = result.spec.sampling, result.environment
    server = result.spec.server
    versions = {engine.vllm_version for engine in result.engines}
    return {
        "prompts": result.prompts_digest,
        "verifier": verifier_digest or server.verifier.name,
        "tokens of an answer": str(sampling.max_tokens),
        "temperature": f"{sampling.temperature:g}",
        "stops at the end of text": "no" if sampling.ignore_eos else "yes",
        "dtype": environment.get("dtype", str(server.dtype)),
        "hardware": _joined(environment, _HARDWARE),
        "GPUs of an engine": environment.get("tensor_parallel_size", "1"),
        "engines behind a port": environment.get("data_parallel_size", "1"),
        "experts": "whole" if environment.get("expert_parallel") == "True" else "sliced",
        "vLLM": ", ".join(sorted(versions)) or _joined(environment, VLLM_DISTRIBUTIONS),
    }


def replay_conditions(result: ReplayResult) -> dict[str, str]:
    """The same of a replay: hardware is not among it, since nothing is timed."""
    return {
        "prompts": result.source_digest,
        "verifier": result.verifier_digest,
        "tokens of an answer": result.environment.get("answer tokens at most", "as in the corpus"),
        "dtype": result.dtype,
        "past the end": "counted" if result.is_past_end_known else "not counted",
    }


def unlike(conditions: Sequence[Mapping[str, str]]) -> tuple[Unlike, ...]:
    """The conditions in which some differ, in the order of the first one; empty: all are alike."""
    keys = dict.fromkeys(key for one in conditions for key in one)
    found = []
    for key in keys:
        values = tuple(one.get(key, "-") for one in conditions)
        if any(a != b for a, b in pairwise(values)):
            found.append(Unlike(what=key, values=values))
    return tuple(found)


def _joined(facts: Mapping[str, str], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {facts[key]}" for key in keys if key in facts) or "unknown"
