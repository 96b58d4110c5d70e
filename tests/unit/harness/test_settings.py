import os

import pytest

from harness import cli
from harness.settings import child_environment

_ORDER = "CUDA_DEVICE_ORDER"


@pytest.mark.parametrize(("given", "order"), [(None, "PCI_BUS_ID"), ("FASTEST_FIRST",) * 2])
def test_a_command_and_what_it_starts_number_gpus_as_nvidia_smi_does_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, order: str
) -> None:
    monkeypatch.setenv(_ORDER, given or "")
    if given is None:
        monkeypatch.delenv(_ORDER)
    found: list[tuple[str | None, str | None]] = []

    def run(_: list[str]) -> int:
        found.append((os.environ.get(_ORDER), child_environment().get(_ORDER)))
        return 0

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        cli.main()
    assert found == [(order, order)]
