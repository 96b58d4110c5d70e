"""What `harness doctor --security` calls open."""

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.settings import Settings, load_settings
from harness.tracking.audit import Check
from harness.tracking.security import check_security, is_loopback


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("PGPASSFILE", "HF_HOME", "MLFLOW_TRACKING_URI", "HARNESS_SWEEP_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    found = load_settings(tmp_path)
    found.mlruns_dir.mkdir(mode=0o700)
    return found


def by_name(settings: Settings) -> dict[str, Check]:
    return {check.name: check for check in check_security(settings)}


def test_a_store_that_others_can_read_is_named(settings: Settings) -> None:
    settings.root_dir.chmod(0o755)  # else nobody gets as far as the store
    assert by_name(settings)["store's folder"].state == "ok"
    (settings.mlruns_dir / "mlflow.db").touch(mode=0o644)
    assert by_name(settings)["store's database"].state == "ok", "the folder keeps others out"
    settings.mlruns_dir.chmod(0o755)
    found = by_name(settings)
    assert [found[n].state for n in ("store's folder", "store's database")] == ["failed"] * 2
    assert found["store's folder"].fix == f"chmod go= {settings.mlruns_dir}"


def test_a_file_of_passwords_that_others_can_read_is_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pgpass"
    path.touch(mode=0o600)
    monkeypatch.setenv("PGPASSFILE", str(path))
    assert by_name(settings)["passwords"].state == "ok"
    path.chmod(0o640)
    assert by_name(settings)["passwords"].state == "failed"


def test_a_password_in_an_address_and_clear_text_over_a_network_are_named(
    settings: Settings,
) -> None:
    far = settings.model_copy(update={"tracking_uri": "http://me:planted@192.0.2.7:1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.tracking.security._ASK_S", 0.01)
        found = by_name(far)
    assert found["store's address"].state == "warning"
    assert found["transport"].state == "failed"
    assert "planted" not in repr(found)


class _Answers(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    found = http.server.HTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize(("status", "state"), [(200, "warning"), (401, "ok")])
def test_a_server_without_a_login_is_named(
    settings: Settings,
    server: http.server.HTTPServer,
    status: int,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Answers, "status", status)
    near = settings.model_copy(update={"tracking_uri": f"http://127.0.0.1:{server.server_port}"})
    assert by_name(near)["login of the server"].state == state


@pytest.mark.parametrize(("host", "state"), [("127.0.0.1", "ok"), ("0.0.0.0", "warning")])  # noqa: S104
def test_what_a_server_listens_on_is_listed(
    settings: Settings, host: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.tracking.security._SERVERS", ("pytest",))
    with socket.socket() as listening:
        listening.bind((host, 0))
        listening.listen()
        address = f"{host}:{listening.getsockname()[1]}"
        (found,) = [check for check in check_security(settings) if address in check.found]
    assert found.state == state


def test_switches_that_let_files_run_code_are_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    found = by_name(settings)["switches"]
    assert (found.state, found.fix) == ("warning", "unset VLLM_ALLOW_INSECURE_SERIALIZATION")


def test_loopback_has_several_names() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.5", "host", ""))  # noqa: S104
