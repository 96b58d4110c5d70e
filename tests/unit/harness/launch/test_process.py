import pytest

from harness.launch.process import command_code


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (130, 130), (247, -9), (241, -15), (-9, -9), (200, 200)]
)
def test_the_exit_code_of_a_supervisor_tells_that_of_its_command(status: int, code: int) -> None:
    assert command_code(status) == code
