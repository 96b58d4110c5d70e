"""Where a store can be, told before MLflow is imported."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.settings import Settings
from harness.tracking.health import check_machine
from harness.tracking.store import require_address

BAD = ("nonsense", "foo://x", "sqlite://", "http//x", "http://", "file:///x/y", "/x/y", "")


@pytest.mark.parametrize("uri", BAD)
def test_what_is_no_address_is_refused_in_one_line(uri: str) -> None:
    with pytest.raises(ConfigError) as raised:
        require_address(uri)
    assert repr(uri) in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.exit_code == 2
    assert "MLFLOW_TRACKING_URI" in str(raised.value.hint)


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:5000",
        "https://host/path",
        "sqlite:////abs/mlflow.db",
        "postgresql+psycopg://user@host/name",
        "mysql+pymysql://host/name",
        "databricks",
        "databricks://profile",
    ],
)
def test_servers_and_databases_are_addresses(uri: str) -> None:
    require_address(uri)


def test_the_doctor_does_not_call_it_well(tmp_path: Path) -> None:
    settings = Settings(root_dir=tmp_path, tracking_uri="nonsense", cache_dir=tmp_path / "cache")
    (check,) = [check for check in check_machine(settings) if check.name == "store"]
    assert (check.state, "'nonsense'" in check.found) == ("failed", True)
