import pytest

from harness.settings import child_environment


def test_a_child_numbers_gpus_as_nvidia_smi_does_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert child_environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert child_environment()["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
