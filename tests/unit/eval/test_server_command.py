"""The sizes by which an engine is spread over GPUs, from a configuration to vLLM's flags."""

from pathlib import Path

import pytest

from eval.server import VllmServer
from eval.spec import ServerSpec
from harness.config.bench import BenchConfig
from harness.config.regenerate import RegenerateConfig
from harness.corpus import servedstates
from harness.corpus.extractplan import ExtractConfig
from harness.drafter.verifier import Verifier

SIZES = {"tensor_parallel_size": 4, "data_parallel_size": 2, "enable_expert_parallel": True}
FLAGS = ["--tensor-parallel-size 4", "--data-parallel-size 2", "--enable-expert-parallel"]


def command_of(spec: ServerSpec) -> str:
    return " ".join(VllmServer(spec, Path("log")).build_command())


def missing(spec: ServerSpec) -> list[str]:
    return [flag for flag in FLAGS if flag not in command_of(spec)]


def test_a_bench_spreads_its_engines_as_its_yaml_says() -> None:
    server = BenchConfig.model_validate({"server": SIZES}).server
    spec = ServerSpec(verifier=Path("v"), **server.model_dump())
    assert missing(spec) == []
    assert spec.num_gpus == 8


def test_an_engine_on_one_gpu_has_none_of_the_flags() -> None:
    command = command_of(ServerSpec(verifier=Path("v")))
    assert "--tensor-parallel-size 1" in command
    assert "data-parallel" not in command
    assert "expert-parallel" not in command


def test_regenerate_and_extract_spread_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = RegenerateConfig.model_validate(SIZES).build_server_spec(Path("v"))
    assert missing(asked) == []
    monkeypatch.setattr(servedstates, "detect_device", lambda: "cuda")
    verifier = Verifier.model_construct(path=Path("v"))
    config = ExtractConfig.model_validate({"backend": "vllm", **SIZES})
    spec = servedstates.build_server_spec(verifier, config, Path("folder"))
    assert missing(spec) == []
