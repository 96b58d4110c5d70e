"""An sshd of our own on loopback, with keys of its own, and the ssh_config that reaches it."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

NAME = "gpubox"
_PRIVILEGE_DIR = Path("/run/sshd")
_WAIT_S = 20.0


class Sshd:
    """A running sshd.

    Args:
        process: It.
        config: What `ssh -F` takes; the host is `gpubox` there.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", config: Path) -> None:
        self._process = process
        self.config = config

    def break_lines(self) -> int:
        """Kills every connection, as a network that goes away would; says how many there were."""
        sessions = psutil.Process(self._process.pid).children()
        for session in sessions:
            for process in (*session.children(), session):  # the one with the user's rights first
                if process.name().startswith("sshd"):
                    process.send_signal(signal.SIGKILL)
        return len(sessions)


def missing_tools() -> str | None:
    """What keeps us from starting an sshd; None when nothing does."""
    names = [name for name in ("ssh", "rsync", "ssh-keygen") if shutil.which(name) is None]
    if sshd_path() is None:
        names.append("sshd")
    return f"needs {' and '.join(names)}" if names else None


def sshd_path() -> str | None:
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def loopback_sshd(folder: Path) -> Iterator[Sshd]:
    """Starts it in a private folder; it ends with the block."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    if os.geteuid() == 0:
        _PRIVILEGE_DIR.mkdir(mode=0o755, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nUsePAM no\nStrictModes no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 100\n"
    )
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    config = folder / "ssh_config"
    config.write_text(
        f"Host {NAME}\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
    )
    command = [str(sshd_path()), "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, start_new_session=True)
    try:
        _wait_for(port)
        yield Sshd(process, config)
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("sshd did not start")
