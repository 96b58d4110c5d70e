from pathlib import Path

import pytest
from fakes.drafters import build_drafter, build_verifier, edit_config
from fakes.memory_store import MemoryStore

from eval.compat import VllmFacts
from eval.errors import SpecError
from eval.spec import ServerSpec
from harness.commands import benching
from harness.commands.benching import bench_drafters, tie_gap_of
from harness.config.bench import BenchConfig
from harness.drafter.verifier import Verifier
from harness.settings import Settings, load_settings


@pytest.mark.parametrize(
    ("in_config", "asked", "gap"),
    [
        ("float32", "auto", 0.25),  # vLLM serves it in bfloat16
        ("float32", "float32", 0.05),
        ("float16", "auto", 0.05),
        ("float16", "bfloat16", 0.25),
    ],
)
def test_a_near_tie_is_as_wide_as_what_the_server_computes_in(
    tmp_path: Path, in_config: str, asked: str, gap: float
) -> None:
    verifier = build_verifier(tmp_path, dtype=in_config)
    assert tie_gap_of(ServerSpec(verifier=tmp_path, dtype=asked), verifier) == gap


def test_a_config_without_a_dtype_leaves_it_to_the_weights(tmp_path: Path) -> None:
    build_verifier(tmp_path)
    edit_config(tmp_path, lambda config: config.pop("dtype"))
    verifier = Verifier.load(str(tmp_path), load_settings(tmp_path))
    assert verifier.dtype is None
    assert tie_gap_of(ServerSpec(verifier=tmp_path, dtype="auto"), verifier) == 0.25


def test_a_k_that_vllm_would_not_heed_is_refused_before_anything_is_measured(
    tmp_path: Path, settings: Settings, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = VllmFacts(version="0.26.0", is_counting_requests=False)
    monkeypatch.setattr(benching, "read_facts", lambda *_: old)
    drafter = build_drafter(tmp_path / "drafter", build_verifier(tmp_path / "verifier"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "category": "chat", "prompt": "hello"}\n')
    config = BenchConfig(
        drafters=(str(drafter),),
        verifier=str(tmp_path / "verifier"),
        prompts=str(prompts),
        k=(3,),
        acceptance_k=(1,),
    )
    with pytest.raises(SpecError, match=r"acceptance_k: expected vLLM 0\.29"):
        bench_drafters(config, settings, store, lambda *_: None)
    assert not store.runs
