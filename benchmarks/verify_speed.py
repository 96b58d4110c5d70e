"""Speed and memory of inspect and verify, on drafters of a size to be named.

    python benchmarks/verify_speed.py [--gigabytes 10] [--deep-megabytes 800]

The header part uses a sparse file, so it needs no disk; the deep part writes real weights into a
temporary folder. Prints one line per measurement; docs/checks.md quotes them.
"""

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HIDDEN, HEADS, HEAD_DIM, VOCAB, DRAFT_VOCAB = 7168, 64, 128, 163_840, 32_000
"""Sizes of a Kimi-K2 drafter; the MLP is widened until the file has the size asked for."""


NUM_RUNS = 15


def shapes(intermediate: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensors of a one-layer flat drafter in bfloat16."""
    queries = HEADS * HEAD_DIM
    matrices = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, intermediate),
        "midlayer.mlp.gate_proj.weight": (intermediate, HIDDEN),
        "midlayer.mlp.up_proj.weight": (intermediate, HIDDEN),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (queries, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (queries, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, queries),
    }
    norms = ("norm", "midlayer.hidden_norm", "midlayer.input_layernorm",
             "midlayer.post_attention_layernorm")  # fmt: skip
    vectors = {f"{name}.weight": (HIDDEN,) for name in norms}
    found = {name: ("BF16", shape) for name, shape in (matrices | vectors).items()}
    return {"d2t": ("I64", (DRAFT_VOCAB,)), **found, "t2d": ("BOOL", (VOCAB,))}


def write_config(folder: Path, intermediate: int) -> None:
    """config.json of that drafter."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "hidden_size": HIDDEN, "intermediate_size": intermediate, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "rope_theta": 50000.0,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": [2, 30, 58], "norm_before_residual": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def build(folder: Path, intermediate: int, *, is_sparse: bool) -> int:
    """Writes the drafter, with real or with absent bytes, and returns the file's size."""
    write_config(folder, intermediate)
    size = {"BF16": 2, "I64": 8, "BOOL": 1}
    header, position = {}, 0
    for name, (dtype, shape) in shapes(intermediate).items():
        end = position + size[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path = folder / "model.safetensors"
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        if not is_sparse:
            for name, (_, shape) in shapes(intermediate).items():
                write_values(stream, name, int(np.prod(shape)))
    os.truncate(path, 8 + len(raw) + position)
    return path.stat().st_size


def write_values(stream, name: str, count: int) -> None:
    """Heavy-tailed values, or tables that fit; in pieces, to keep this script small."""
    rng = np.random.default_rng(1)
    targets = np.sort(rng.choice(VOCAB, DRAFT_VOCAB, replace=False)).astype(np.int64)
    if name == "d2t":
        stream.write((targets - np.arange(DRAFT_VOCAB)).tobytes())
        return
    if name == "t2d":
        mask = np.zeros(VOCAB, dtype=bool)
        mask[targets] = True
        stream.write(mask.tobytes())
        return
    piece = np.random.default_rng(0).laplace(scale=0.03, size=1 << 20).astype(np.float32)
    bits = (piece.view(np.uint32) >> 16).astype(np.uint16)
    while count:
        part = bits[: min(count, bits.size)]
        stream.write(part.tobytes())
        count -= part.size


def build_verifier(folder: Path) -> None:
    """A verifier whose head is there in size only: no row aligns, so the search is the longest."""
    folder.mkdir()
    config = {
        "architectures": ["X"], "hidden_size": HIDDEN, "num_hidden_layers": 61,
        "num_attention_heads": HEADS, "vocab_size": VOCAB, "rope_theta": 50000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    size = 2 * VOCAB * HIDDEN
    header = {
        name: {
            "dtype": "BF16",
            "shape": (VOCAB, HIDDEN),
            "data_offsets": (i * size, (i + 1) * size),
        }
        for i, name in enumerate(("lm_head.weight", "model.embed_tokens.weight"))
    }
    raw = json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    os.truncate(path, 8 + len(raw) + 2 * size)


def command(*arguments: str) -> str:
    """Least, median and most seconds of a whole `harness` command, start-up included."""
    seconds = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        words = [sys.executable, "-m", "harness", *arguments]
        subprocess.run(words, check=False, capture_output=True)
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    median = seconds[NUM_RUNS // 2]
    return f"{seconds[0]:.2f} / {median:.2f} / {seconds[-1]:.2f} s of {NUM_RUNS} runs"


def check(folder: Path, verifier: str = "", *, deep: bool) -> tuple[float, float]:
    """Seconds of the check alone, and the peak memory of a process that does nothing else, MB."""
    code = (
        "import resource, sys, time\nfrom pathlib import Path\n"
        "from harness.drafter.checks import check_drafter\n"
        "from harness.drafter.verifier import Verifier\n"
        "from harness.settings import load_settings\n"
        "known = Verifier.load(sys.argv[2], load_settings()) if sys.argv[2] else None\n"
        "start = time.perf_counter()\n"
        f"report = check_drafter(Path(sys.argv[1]), known, deep={deep})\n"
        "print(time.perf_counter() - start, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, report.ok)\n"
        f"assert report.ok or not {deep}, report\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), verifier],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    seconds, megabytes, _ = done.stdout.split()
    return float(seconds), float(megabytes)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--deep-megabytes", type=float, default=1800.0)
    asked = parser.parse_args()
    fixed = sum(2 * int(np.prod(shape)) for dtype, shape in shapes(0).values() if dtype == "BF16")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "sparse"
        folder.mkdir()
        intermediate = int((asked.gigabytes * 1e9 - fixed) / (6 * HIDDEN))
        size = build(folder, intermediate, is_sparse=True)
        seconds, memory = check(folder, deep=False)
        print(f"header check of {size / 1e9:.1f} GB: {seconds:.3f} s, peak {memory:.0f} MB")
        build_verifier(Path(root) / "v")
        against = ("--verifier", str(Path(root) / "v"))
        print(f"  harness verify: {command('verify', '--drafter', str(folder))}")
        print(f"  against a verifier: {command('verify', '--drafter', str(folder), *against)}")
        print(f"  harness inspect: {command('inspect', str(folder))}")
        print(f"  harness --help: {command('--help')}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "real"
        folder.mkdir()
        intermediate = max(64, int((asked.deep_megabytes * 1e6 - fixed) / (6 * HIDDEN)))
        size = build(folder, intermediate, is_sparse=False)
        largest = max(2 * int(np.prod(s)) for _, s in shapes(intermediate).values())
        seconds, memory = check(folder, deep=True)
        print(
            f"deep check of {size / 1e6:.0f} MB: {seconds:.2f} s = {size / 1e6 / seconds:.0f} MB/s"
            f" on one core, peak {memory:.0f} MB (largest tensor {largest / 1e6:.0f} MB)"
        )
        build_verifier(Path(root) / "verifier")
        read = size + 2 * HIDDEN * (VOCAB + DRAFT_VOCAB)
        seconds, memory = check(folder, str(Path(root) / "verifier"), deep=True)
        print(
            f"with a verifier, none of whose rows align ({read / 1e6:.0f} MB in all): {seconds:.2f}"
            f" s = {read / 1e6 / seconds:.0f} MB/s on one core, peak {memory:.0f} MB"
        )
    print(f"this script itself: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
