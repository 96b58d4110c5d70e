"""`deploy/compose.yaml` is what `deploy/up.sh` is: on loopback, with secrets from files."""

import re
from importlib.metadata import version
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
UP = (DEPLOY / "up.sh").read_text()


def test_every_port_is_on_loopback() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service["ports"]]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_secrets_are_files_and_no_value_is_written_down() -> None:
    assert all(set(secret) == {"file"} for secret in COMPOSE["secrets"].values())
    values = re.findall(r"^[^#\n]*PASSWORD[=:] *(\S+)", TEXT, re.MULTILINE)
    assert [v for v in values if not v.startswith(('"$$(', "/run/secrets"))] == []


def test_the_server_is_the_one_of_up_sh() -> None:
    environment = COMPOSE["services"]["mlflow"]["environment"]
    pattern = environment["MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX"].replace("$$", "$")
    assert f"'{pattern}'" in UP
    for line in COMPOSE["configs"]["auth"]["content"].splitlines():
        if not line.startswith("database_uri"):
            assert line in UP, line
    assert f"mlflow=={version('mlflow')}" in TEXT
    assert f"psycopg[binary]=={version('psycopg')}" in TEXT
