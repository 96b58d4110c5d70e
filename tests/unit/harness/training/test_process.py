from harness.training.process import gpu_figures, signal_name


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
