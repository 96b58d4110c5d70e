"""Asked of a host before anything is sent: what is installed, free and computing there.

Standard library only: its text is given to the host's Python over ssh. Prints one JSON document.
Arguments: the folder that is to be used, then the names of packages.
"""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

_QUERY = "name,memory.total,memory.free"


def main(folder: str, packages: list[str]) -> None:
    """Prints the facts."""
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    place = Path(folder).expanduser().absolute()
    while not place.exists():
        place = place.parent
    facts = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "packages": versions,
        "has_rsync": shutil.which("rsync") is not None,
        "free_bytes": shutil.disk_usage(place).free,
        "num_cpus": len(os.sched_getaffinity(0)),
        "gpus": gpus(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def gpus() -> list[dict[str, object]]:
    """Name, total and free MiB of each GPU; none where nvidia-smi does not answer."""
    command = ["nvidia-smi", "--query-gpu=" + _QUERY, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [
        {"name": row[0], "total_mib": int(row[1]), "free_mib": int(row[2])}
        for row in rows
        if len(row) == len(_QUERY.split(",")) and row[1].isdigit() and row[2].isdigit()
    ]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
