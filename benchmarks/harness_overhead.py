"""What the harness adds to the time in which the engines generate.

    python benchmarks/harness_overhead.py --drafter FOLDER --verifier FOLDER [--num-prompts 24]

A whole bench, baseline and one drafter, from the call to the written result; starts, warm-ups and
stops of engines are not counted. Aim: at most 3 %.
"""

import tempfile
import time
from pathlib import Path

from flags import build_parser, prompts_of

from eval.runner import run_bench
from eval.spec import BenchSpec, DrafterSpec, ServerSpec


def main() -> None:
    """Measures and prints one line."""
    parser = build_parser(__doc__, num_prompts=24)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--verifier", type=Path, required=True)
    flags = parser.parse_args()
    spec = BenchSpec(
        server=ServerSpec(verifier=flags.verifier, max_model_len=1024, max_num_seqs=4),
        drafters=(DrafterSpec(name="drafter", path=flags.drafter),),
        prompts=prompts_of(flags),
        prompts_name=str(flags.prompts),
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        result = run_bench(spec, Path(folder), lambda *_: None)
        total_s = time.monotonic() - began
    own_s = total_s - result.lifecycle_s - result.generation_s
    print(
        f"{result.pairing}, {flags.num_prompts} prompts: generation {result.generation_s:.0f} s, "
        f"starts and stops {result.lifecycle_s:.0f} s, harness {own_s:.1f} s = "
        f"{own_s / result.generation_s:.1%} of generation"
    )


if __name__ == "__main__":
    main()
