"""When one engine's waiting disturbs another's measurement."""

from pathlib import Path

import pytest

from eval.environment import SPIN_S, rest_s
from eval.spec import ServerSpec


@pytest.mark.parametrize(
    ("device", "cores", "tensor_parallel_size", "seconds"),
    [
        ("cpu", 64, 1, SPIN_S),
        ("cuda", 11, 1, SPIN_S),
        ("cuda", 12, 1, 0.0),
        ("cuda", 39, 8, SPIN_S),
        ("cuda", 40, 8, 0.0),
    ],
)
def test_engines_rest_where_they_share_cores(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    cores: int,
    tensor_parallel_size: int,
    seconds: float,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    server = ServerSpec(
        verifier=Path("/v"), device=device, tensor_parallel_size=tensor_parallel_size
    )
    assert rest_s(server) == seconds
