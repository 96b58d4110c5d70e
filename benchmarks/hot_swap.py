"""Many checkpoints of one architecture: changed in place, against a fresh engine for each.

    python benchmarks/hot_swap.py --drafter FOLDER --verifier FOLDER [--checkpoints 10]

Equal prompts, equal counts demanded. Prints both totals and their ratio (aim: at most 0.35), and
what the harness adds to the bare engine's own generation time (aim: at most 3 %). Fresh engines are
started for `--fresh` of the checkpoints and their mean is taken for the others.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from flags import build_parser, prompts_of
from safetensors import safe_open

from eval.architecture import read_slots
from eval.cells import Cell, CellKey
from eval.engine import Engine
from eval.lossless import require_equal_counts
from eval.plan import build_arms
from eval.proposers import write_safetensors
from eval.spec import BenchSpec, DrafterSpec, Sampling, ServerSpec


def write_checkpoints(drafter: Path, folder: Path, count: int) -> tuple[DrafterSpec, ...]:
    """Copies of a drafter, each with its output projection scaled a little differently."""
    found = []
    for index in range(count):
        target = folder / f"checkpoint-{index}"
        target.mkdir()
        (target / "config.json").write_bytes((drafter / "config.json").read_bytes())
        tensors = {}
        for path in sorted({slot.path for slot in read_slots(drafter).values()}):
            with safe_open(path, "pt") as stream:
                for name in stream.keys():  # noqa: SIM118 - safe_open is no mapping
                    tensor = stream.get_tensor(name)
                    is_float = tensor.is_floating_point()
                    tensors[name] = (tensor.float() if is_float else tensor).numpy()
        scaled = "layers.0.self_attn.o_proj.weight"
        tensors[scaled] = tensors[scaled] * np.float32(1 - 0.05 * index)
        write_safetensors(target / "model.safetensors", tensors)
        found.append(DrafterSpec(name=f"checkpoint-{index}", path=target))
    return tuple(found)


def measure_all(engine: Engine, spec: BenchSpec, count: int) -> tuple[float, list[Cell]]:
    """Seconds for the first `count` drafters, engine starts included, and their cells."""
    began = time.monotonic()
    cells = []
    for arm in build_arms(spec, 3)[:count]:
        key = CellKey(session="s", arm=arm.name, k=3, concurrency=spec.concurrency[0], block=0)
        cells.append(engine.measure(key, arm, spec.prompts))
    total_s = time.monotonic() - began
    engine.close()
    return total_s, cells


def main() -> None:
    """Measures and prints."""
    parser = build_parser(__doc__, num_prompts=4, max_tokens=48)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--verifier", type=Path, required=True)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--fresh", type=int, default=10)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = BenchSpec(
            server=ServerSpec(verifier=flags.verifier, max_model_len=1024, max_num_seqs=4),
            drafters=write_checkpoints(flags.drafter, folder, flags.checkpoints),
            prompts=prompts_of(flags),
            prompts_name=str(flags.prompts),
            sampling=Sampling(max_tokens=flags.max_tokens),
            num_warmup=1,
        )
        engine = Engine("swap", spec, folder, is_swapping=True)
        swap_s, swapped = measure_all(engine, spec, flags.checkpoints)
        start_s = engine.records[0].start_s
        fresh_s, fresh = measure_all(Engine("fresh", spec, folder), spec, flags.fresh)
    for one, other in zip(swapped, fresh, strict=False):
        require_equal_counts(one, other)
    fresh_total_s = fresh_s * flags.checkpoints / flags.fresh
    generation_s = sum(cell.wall_s for cell in swapped)
    overhead = (swap_s - start_s - generation_s) / generation_s
    print(
        f"{flags.checkpoints} checkpoints: changed in place {swap_s:.0f} s, fresh engines "
        f"{fresh_total_s:.0f} s, ratio {swap_s / fresh_total_s:.2f}; engine start {start_s:.0f} s, "
        f"generation {generation_s:.0f} s, everything else {overhead:.1%} of it; counts equal in "
        f"{len(fresh)} of {len(fresh)} compared"
    )


if __name__ == "__main__":
    main()
