import pytest

from eval.errors import EvalError, ServerStartError
from harness.commands.sweepshow import telling
from harness.config.bench import BenchConfig
from harness.errors import CheckError
from harness.sweep.serving import Measured

BENCH = BenchConfig.model_validate({"name": "s costs k3", "drafters": ["run:ab", "run:cd"]})
FAILURES = {
    "cause: OutOfMemoryError -> the whole log: k3.log": ServerStartError(
        "it exited\ncause: OutOfMemoryError\nlast lines of the log:\n  | x", "the whole log: k3.log"
    ),
    "no d2t": CheckError("no d2t"),
}


@pytest.mark.parametrize(("said", "error"), FAILURES.items())
def test_a_measurement_that_fails_is_told_of_and_fails(
    capsys: pytest.CaptureFixture[str], said: str, error: Exception
) -> None:
    def measure(_: BenchConfig) -> Measured:
        raise error

    with pytest.raises((EvalError, CheckError)) as found:
        telling(measure)(BENCH)
    assert found.value is error
    text = " ".join(capsys.readouterr().err.split())
    assert text == f"warning: s costs k3 of run:ab, run:cd failed: {said}"
