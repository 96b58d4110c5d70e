"""`deploy/up.sh`: loopback, a login, no default password, nothing secret where others can read."""

import json
import stat
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import psutil
import pytest
from fakes.command_line import run_harness
from fakes.deployment import UP, Deployment

from harness.settings import Settings
from harness.tracking import names
from harness.tracking.store import open_store


def answer(deployment: Deployment, login: str | None) -> int:
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{deployment.server_url}/api/2.0/mlflow/experiments/search?max_results=1"
    )
    if login:
        request.add_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=30) as found:  # noqa: S310 - the same
            return int(found.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_server_lets_in_nobody_without_its_own_password(deployment: Deployment) -> None:
    password = deployment.credentials["MLFLOW_TRACKING_PASSWORD"]
    assert len(password) == 32
    assert answer(deployment, f"admin:{password}") == 200
    for login in (None, "admin:admin", "admin:password", "admin:password1234", "admin:"):
        assert answer(deployment, login) == 401, login


def test_secrets_are_in_files_of_their_owner_and_nowhere_else(deployment: Deployment) -> None:
    secrets = [
        (deployment.dir / "admin-password").read_text().strip(),
        (deployment.dir / "session-key").read_text().strip(),
        (deployment.dir / "pgpass").read_text().strip().rpartition(":")[2],
    ]
    assert len(set(secrets)) == 3
    for path in deployment.dir.iterdir():
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((deployment.dir / "postgres").stat().st_mode) == 0o700
    arguments = [" ".join(process.info["cmdline"] or ()) for process in _processes()]
    logs = [path.read_text() for path in deployment.dir.glob("*.log")]
    for secret in secrets:
        assert not any(secret in text for text in (*arguments, *logs))


def _processes() -> list[psutil.Process]:
    return list(psutil.process_iter(["cmdline"]))


def test_doctor_finds_it_on_loopback_and_behind_a_login(
    deployment: Deployment, server_settings: Settings
) -> None:
    done = run_harness(
        server_settings.root_dir, "doctor", "--security", "--json",
        MLFLOW_TRACKING_URI=deployment.server_url, **deployment.credentials,
    )  # fmt: skip
    checks = json.loads(done.stdout)["checks"]
    (login,) = [check for check in checks if check["name"] == "login of the server"]
    assert login["state"] == "ok"
    # Other servers of this machine are listed, too.
    ports = tuple(f":{deployment.environment[f'{name}_PORT']}" for name in ("POSTGRES", "MLFLOW"))
    own = [check for check in checks if check["found"].endswith(ports)]
    assert len(own) >= 2
    assert {check["state"] for check in own} == {"ok"}


def test_starting_it_twice_changes_nothing_and_it_says_that_it_runs(deployment: Deployment) -> None:
    before = deployment.credentials
    assert "user admin" in deployment.up()
    assert deployment.credentials == before
    assert deployment.up("status").count("runs on") == 2


def test_a_wrong_password_is_one_message(server_settings: Settings, tmp_path: Path) -> None:
    done = run_harness(
        tmp_path, "registry", "list", MLFLOW_TRACKING_URI=server_settings.tracking_uri,
        MLFLOW_TRACKING_USERNAME="admin", MLFLOW_TRACKING_PASSWORD="not-the-right-one",
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "MLFLOW_TRACKING_PASSWORD" in done.stderr
    assert "not-the-right-one" not in done.stderr


@pytest.mark.parametrize("name", ["../../outside", "{absolute}/outside", "%2e%2e/outside"])
def test_no_artifact_leaves_its_place_through_the_server(
    deployment: Deployment, server_settings: Settings, tmp_path: Path, name: str
) -> None:
    store = open_store(server_settings)
    run = store.start_run(names.KIND_TRAIN, "train", experiment=names.EXPERIMENT_TRAIN)
    login = f"admin:{deployment.credentials['MLFLOW_TRACKING_PASSWORD']}"
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{deployment.server_url}/api/2.0/mlflow-artifacts/artifacts/{name.format(absolute=tmp_path)}",
        data=b"planted",
        method="PUT",
        headers={"Authorization": f"Basic {b64encode(login.encode()).decode()}"},
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=30)  # noqa: S310 - the same
    run.finish()
    assert not list(deployment.dir.rglob("outside"))
    assert not (tmp_path / "outside").exists()


def refuse(tmp_path: Path, **environment: str) -> str:
    """What `up.sh` says with an interpreter that believes everything, and no server of its own."""
    done = subprocess.run(
        [str(UP)],
        env={"PATH": "/usr/bin:/bin", "PYTHON": "/bin/true", "HOME": str(tmp_path),
             **environment},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    return done.stderr


def test_an_address_that_others_reach_is_warned_of(postgres: Deployment, tmp_path: Path) -> None:
    said = refuse(tmp_path, **_of(postgres), MLFLOW_HOST="0.0.0.0")  # noqa: S104
    assert "other machines reach it" in said
    assert "TLS" in said


def test_a_password_file_that_others_can_read_is_refused(
    postgres: Deployment, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("chosen by hand\n")
    path.chmod(0o644)
    said = refuse(tmp_path, **_of(postgres), MLFLOW_ADMIN_PASSWORD_FILE=str(path))
    assert "can be read by others" in said
    assert "chosen by hand" not in said


def _of(postgres: Deployment) -> dict[str, str]:
    kept = ("HARNESS_SERVER_DIR", "POSTGRES_PORT", "MLFLOW_PORT")
    return {name: postgres.environment[name] for name in kept}
