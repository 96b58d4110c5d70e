"""One request in a process of its own under torch's profiler: what a step takes, and of whom.

    python benchmarks/gpu/trace.py VERIFIER [DRAFTER] [FLAGS=VALUES of vLLM's LLM(), as JSON]

With a drafter K = 3. Prints seconds and steps, the graphs that were dispatched (vLLM's model runner
V2), time of the GPU's kernels, and the calls that the CPU spends most on.
"""

import collections
import json
import os
import sys
import time
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine is here, where the profiler is

import torch
from torch.profiler import ProfilerActivity, profile
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu import cudagraph_utils

_PROMPTS = ["Explain in a paragraph why the sky is blue, and what a prism does."]
_K = 3
_NUM_TOKENS = 96
_NUM_ROWS = 25


def count_dispatches() -> collections.Counter[str]:
    """Counts, from now on, what kind of graph each forward pass was given."""
    counts: collections.Counter[str] = collections.Counter()
    managers = [
        value
        for value in vars(cudagraph_utils).values()
        if isinstance(value, type) and "dispatch" in vars(value)
    ]
    for manager in managers:
        manager.dispatch = _counted(manager.dispatch, counts)  # type: ignore[attr-defined]
    return counts


def _counted(held: Any, counts: collections.Counter[str]) -> Any:
    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = held(self, *args, **kwargs)
        counts[f"{type(self).__name__}: {found.cg_mode.name}, {found.num_tokens} tokens"] += 1
        return found

    return dispatch


def main() -> None:
    """Answers once to warm up, once by the clock, once under the profiler."""
    words = sys.argv[1:]
    more = json.loads(words.pop()) if words[-1].startswith("{") else {}
    drafter = words[1] if len(words) > 1 else None
    speculative = {"method": "eagle3", "model": drafter, "num_speculative_tokens": _K}
    llm = LLM(
        model=words[0],
        speculative_config=speculative if drafter else None,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=32,
        gpu_memory_utilization=0.4,
        **more,
    )
    sampling = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True)
    llm.generate(_PROMPTS, sampling)
    counts = count_dispatches()
    started = time.perf_counter()
    llm.generate(_PROMPTS, sampling)
    print(f"{time.perf_counter() - started:.4f} s for {_NUM_TOKENS} tokens")
    for text, count in counts.most_common():
        print(f"{count:5} x {text}")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        llm.generate(_PROMPTS, sampling)
        torch.cuda.synchronize()
    for key in ("self_cuda_time_total", "self_cpu_time_total"):
        print(found.key_averages().table(sort_by=key, row_limit=_NUM_ROWS))


if __name__ == "__main__":
    main()
