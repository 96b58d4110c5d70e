import signal
from types import SimpleNamespace

import pytest

from harness.training.process import Interrupts, gpu_figures, signal_name


def test_both_signals_within_a_second_are_one_wish_to_stop_and_a_second_ctrl_c_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("harness.training.process.time", clock)
    with Interrupts() as interrupts:
        counts = []
        for seconds, number in (
            (0.0, signal.SIGINT), (0.3, signal.SIGTERM), (1.0, signal.SIGINT), (0.2, signal.SIGINT),
        ):  # fmt: skip
            now += seconds
            signal.raise_signal(number)
            counts.append(interrupts.count)
    assert counts == [1, 1, 2, 3]


def test_gpu_lines_become_figures_per_gpu() -> None:
    assert gpu_figures([["37", "1024"], ["[N/A]", "2"]]) == {
        "gpu0_percent": 37.0,
        "gpu0_memory_bytes": 1024.0 * 2**20,
        "gpu1_memory_bytes": 2.0 * 2**20,
    }


def test_no_gpu_means_no_figures() -> None:
    assert gpu_figures([]) == {}


def test_a_negative_exit_code_names_its_signal() -> None:
    assert signal_name(-9) == "SIGKILL"
