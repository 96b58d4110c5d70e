"""The line to a host: commands over ssh, files over rsync. The one place that starts either.

Logins are ssh's business: keys, agents and names stand in ssh_config. Nobody is asked anything.
"""

import contextlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.errors import PrerequisiteError, WorkError
from harness.settings import child_environment

_SSH_FAILED = 255
_RSYNC_LINE = {10, 12, 30, 35, 255}
"""Exit codes of rsync when the line failed (rsync(1)): worth another try, which goes on."""
_TRIES, _PAUSE_S = 5, 2.0
_OPTIONS = (
    "BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=10", "ServerAliveCountMax=3",
)  # fmt: skip


class LineError(WorkError):
    """The connection failed, or ended before the command did."""


class CommandError(WorkError):
    """A command there failed.

    Args:
        code: Its exit code.
        message: What it said.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message, "what it says is of the host: see there")
        self.code = code


class Host:
    """A machine that ssh reaches.

    Args:
        address: As ssh takes it.
        ssh_config: File to read instead of the user's own.
        sleep: Waits between tries.
    """

    def __init__(
        self,
        address: str,
        ssh_config: Path | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address = address
        self._sleep = sleep
        config = ("-F", str(ssh_config)) if ssh_config else ()
        self._ssh = ("ssh", *config, *(word for option in _OPTIONS for word in ("-o", option)))

    def run(self, words: Sequence[str], told: bytes = b"") -> bytes:
        """Output of a command there.

        Args:
            words: The command; quoted for the shell there.
            told: Its stdin.

        Raises:
            LineError: The host was not reached.
            CommandError: The command failed.
        """
        done = subprocess.run(
            self._command(words), input=told, capture_output=True, check=False,
            env=child_environment(),
        )  # fmt: skip
        if done.returncode == _SSH_FAILED:
            raise self._unreached(done.stderr)
        if done.returncode:
            said = _text(done.stderr)
            raise CommandError(
                done.returncode, f"{self.address}: it exited with {done.returncode}: {said}"
            )
        return done.stdout

    def run_patiently(self, words: Sequence[str], told: bytes = b"") -> bytes:
        """The same for a command that does no harm twice: tried again when the line fails."""
        for _ in range(_TRIES - 1):
            try:
                return self.run(words, told)
            except LineError:
                self._sleep(_PAUSE_S)
        return self.run(words, told)

    @contextmanager
    def opened(self, words: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
        """A command there whose output is read as it comes; its stdin ends with the block."""
        process = subprocess.Popen(
            self._command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=child_environment(),
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            process.communicate()

    def push(self, sources: Sequence[Path | str], target: str, *flags: str) -> None:
        """Sends files and folders into a folder there, as rsync does; goes on after a break.

        Raises:
            LineError: The line failed again and again.
            WorkError: rsync refused, as for a full disk.
        """
        self._rsync([*flags, "--", *map(str, sources), f"{self.address}:{target}/"])

    def pull(self, source: str, target: Path, *flags: str) -> None:
        """Brings what a folder there holds; errors as of `push`."""
        target.mkdir(parents=True, exist_ok=True)
        self._rsync([*flags, "--", f"{self.address}:{source}/", f"{target}/"])

    def _rsync(self, words: Sequence[str]) -> None:
        command = ["rsync", "-a", "--partial", "-e", shlex.join(self._ssh), *words]
        for number in range(1, _TRIES + 1):
            done = subprocess.run(
                command, capture_output=True, check=False, env=child_environment()
            )
            if done.returncode == 0:
                return
            if done.returncode not in _RSYNC_LINE:
                raise WorkError(
                    f"rsync with {self.address} exited with {done.returncode}: "
                    f"{_text(done.stderr)}",
                    "what it says is of the host or of this disk: see there",
                )
            if number < _TRIES:
                self._sleep(_PAUSE_S)
        raise self._unreached(done.stderr)

    def _command(self, words: Sequence[str]) -> list[str]:
        return [*self._ssh, "--", self.address, shlex.join(words)]

    def _unreached(self, said: bytes) -> LineError:
        return LineError(
            f"{self.address} was not reached: {_text(said) or 'the connection ended'}",
            f"try: ssh {self.address} true; keys and addresses stand in ssh_config",
        )


def require_tools() -> None:
    """Refuses to begin without ssh and rsync on this machine.

    Raises:
        PrerequisiteError: Names what is missing.
    """
    missing = [name for name in ("ssh", "rsync") if shutil.which(name) is None]
    if missing:
        raise PrerequisiteError(
            f"expected ssh and rsync on this machine, found no {' and no '.join(missing)}",
            "install openssh-client and rsync",
        )


def _text(said: bytes) -> str:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])
