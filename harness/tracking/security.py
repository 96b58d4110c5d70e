"""What is open on this machine: who can read the store, who can reach a server, what runs code.

Asks and looks; changes nothing, and shows no secret.
"""

import ipaddress
import stat
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit

import psutil

from harness.redaction import redacted
from harness.settings import Settings, secret_files, unsafe_switches
from harness.tracking.audit import Check, State

_SERVERS = ("mlflow", "uvicorn", "vllm", "optuna-dashboard", "postgres", "raylet", "gcs_server")
"""Words of command lines of the servers that the harness starts, or that stand behind it."""
_ASK_S = 5.0
_SEARCH = "/api/2.0/mlflow/experiments/search?max_results=1"
_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class _Listener(NamedTuple):
    """A socket that takes connections."""

    name: str
    address: str
    port: int


def check_security(settings: Settings) -> list[Check]:
    """One line for each thing that could be open: files, addresses, servers, switches."""
    return [
        *_check_files(settings),
        *_check_address(settings),
        *_check_listeners(),
        _check_switches(),
    ]


def _check_files(settings: Settings) -> list[Check]:
    places = [
        ("store's folder", settings.mlruns_dir),
        ("store's database", settings.mlruns_dir / "mlflow.db"),
        ("decision log", settings.mlruns_dir / "decisions.jsonl"),
        *(("passwords", path) for path in secret_files()),
    ]
    return [_check_mode(what, path) for what, path in places if path.exists()]


def _check_mode(what: str, path: Path) -> Check:
    mode = stat.S_IMODE(path.stat().st_mode)
    is_private = not mode & _BY_OTHERS
    behind_wall = what != "passwords" and not stat.S_IMODE(path.parent.stat().st_mode) & _BY_OTHERS
    return Check(
        name=what,
        state="ok" if is_private or behind_wall else "failed",
        found=f"{path}, mode {mode:04o}",
        fix=None if is_private or behind_wall else f"chmod go= {path}",
    )


def _check_address(settings: Settings) -> list[Check]:
    uri = settings.tracking_uri
    address = urlsplit(uri)
    checks = []
    for name, value in (("store's address", uri), ("sweeps' storage", settings.sweep_storage)):
        if value and urlsplit(value).password:
            checks.append(
                Check(
                    name=name,
                    state="warning",
                    found=f"a password is part of it: {redacted(value)}",
                    fix="PGPASSFILE for a database; MLFLOW_TRACKING_USERNAME and _PASSWORD, or "
                    "~/.mlflow/credentials, for a server",
                )
            )
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        found = f"{redacted(uri)}: names, results and passwords pass in clear text"
        fix = "https:// and a proxy with TLS before the server, or a tunnel"
        checks.append(Check(name="transport", state="failed", found=found, fix=fix))
    if address.scheme in {"http", "https"}:
        checks.append(_check_login(address.scheme, address.netloc.rpartition("@")[2], uri))
    return checks


def _check_login(scheme: str, host: str, uri: str) -> Check:
    """Asks the server for experiments as nobody."""
    name = "login of the server"
    try:
        urllib.request.urlopen(f"{scheme}://{host}{_SEARCH}", timeout=_ASK_S).close()  # noqa: S310 - http(s) only
    except HTTPError as error:
        return Check(name=name, state="ok", found=f"asks for one: HTTP {error.code} without")
    except OSError as error:
        return Check(name=name, state="warning", found=f"no answer: {redacted(str(error))}")
    is_near = is_loopback(urlsplit(uri).hostname or "")
    return Check(
        name=name,
        state="warning" if is_near else "failed",
        found="none: whoever reaches it can read, change and delete everything",
        fix="mlflow server --app-name basic-auth, as deploy/up.sh starts it",
    )


def _check_listeners() -> list[Check]:
    checks = []
    for found in _listeners():
        is_near = is_loopback(found.address)
        state: State = "ok" if is_near else "warning"
        checks.append(
            Check(
                name=f"server {found.name}",
                state=state,
                found=f"listens on {found.address}:{found.port}",
                fix=None if is_near else "bind it to 127.0.0.1, or put TLS and a login before it",
            )
        )
    return checks


def _listeners() -> list[_Listener]:
    """Servers of this user; root sees those of all."""
    found = set()
    for process in psutil.process_iter(["cmdline", "name"]):
        words = " ".join(process.info["cmdline"] or ()) or process.info["name"]
        name = next((server for server in _SERVERS if server in words), None)
        if name is None:
            continue
        try:
            sockets = process.net_connections(kind="tcp")
        except (psutil.Error, OSError):
            continue
        for socket in sockets:
            if socket.status == psutil.CONN_LISTEN:
                found.add(_Listener(name, socket.laddr.ip, socket.laddr.port))
    return sorted(found)


def _check_switches() -> Check:
    switched = unsafe_switches()
    return Check(
        name="switches",
        state="warning" if switched else "ok",
        found=", ".join(switched) or "none that lets files or callers run code",
        fix=f"unset {' '.join(switched)}" if switched else None,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host of this name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
