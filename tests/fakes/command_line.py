"""The command line as a user meets it: a process of its own, in a project folder of its own."""

import subprocess
import sys
from pathlib import Path

from harness.settings import child_environment


def environment_of(root: Path) -> dict[str, str]:
    environment = child_environment(HARNESS_ROOT=str(root), COLUMNS="200")
    environment.pop("MLFLOW_TRACKING_URI", None)
    return environment


def run_harness(
    root: Path, *arguments: str, timeout_s: float = 120, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Runs `harness ARGUMENTS` to its end, with these variables set."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        env={**environment_of(root), **environment},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start_python(
    root: Path, *arguments: str, environment: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Starts Python with these arguments; output is piped."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment or environment_of(root),
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
