"""A network namespace joined to this one by a link that can be cut: a host that is away."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_HERE, _THERE = "10.203.17.1", "10.203.17.2"


class Link:
    """The link, and the namespace behind it.

    Args:
        name: Of the namespace.
    """

    here, there = _HERE, _THERE
    """Addresses of both sides; the other one reaches every address of this one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in the namespace."""
        return ["ip", "netns", "exec", self._name, *command]

    def kill_inside(self) -> None:
        """Ends every process in the namespace."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self._name], check=True, capture_output=True, text=True
        )
        for pid in pids.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def cut(self) -> None:
        """Lets every packet vanish, without a word to either side."""
        _ip("link", "set", self._name, "down")

    def mend(self) -> None:
        """Lets packets through again."""
        _ip("link", "set", self._name, "up")


def missing_rights() -> str | None:
    """What keeps us from making a namespace; None when nothing does."""
    if shutil.which("ip") is None:
        return "needs ip (iproute2)"
    if os.geteuid() != 0:
        return "needs root, for a network namespace"
    try:
        with linked(f"hx{os.getpid()}"):
            return None
    except subprocess.CalledProcessError as error:
        return f"needs CAP_NET_ADMIN, for a network namespace: {error.stderr.decode().strip()}"


@contextmanager
def linked(name: str) -> Iterator[Link]:
    """A namespace and its link, for as long as the block lasts.

    Args:
        name: At most 13 letters: the devices are named after it.
    """
    try:
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-p", "netns", name)
        _ip("addr", "add", f"{_HERE}/24", "dev", name)
        _ip("link", "set", name, "up")
        for words in (
            ("addr", "add", f"{_THERE}/24", "dev", f"{name}-p"),
            ("link", "set", f"{name}-p", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", _HERE),
        ):
            _ip("-n", name, *words)
        yield Link(name)
    finally:
        for words in (("link", "del", name), ("netns", "del", name)):
            with suppress(subprocess.CalledProcessError):
                _ip(*words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
